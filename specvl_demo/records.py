"""The records of a lane as JSON lines: one `Begin`, a `Round` for every draft-verify-commit, one
`End`.

The classes are the schema; `validate` and `validate_trace` hold the few rules between fields and
records that it cannot express: one file, for whoever reads a trace needs both. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeAlias

import msgspec
from msgspec import Meta, Struct

SCHEMA = 1
"""Version of the record format, `Begin.schema`; a reader refuses any other."""

MAX_NEW_TOKENS = 4096
"""The longest answer in tokens. It also bounds a lane's rounds."""
MAX_NODES = 4096
MAX_PROMPT = 2**24
MAX_AGAIN = 64
MAX_PATCHES = 2**20
LARGEST = 2**53 - 1
"""The largest number in a record: integers up to it are exact in a browser too."""

Origin = Literal["draft", "relaxed", "target"]
"""draft: drafted, and the target's choice too · relaxed: drafted and accepted, though not the
target's choice · target: the target's own.
"""
Stop = Literal["eos", "stop", "length", "cancelled", "error"]
"""stop: at a stop string."""
WHOLE: tuple[Stop, ...] = ("eos", "stop", "length")
"""The ends of answers that were written as far as they were to be."""
PHASES = ("draft_s", "verify_s", "commit_s", "other_s")

Int: TypeAlias = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
Float: TypeAlias = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1.001)]
Prob: TypeAlias = Share  # a softmax in float16 may round above 1
Nodes: TypeAlias = Annotated[list[Int], Meta(min_length=1, max_length=MAX_NODES)]
Patches: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PATCHES)]
Scalar: TypeAlias = None | bool | Int | Float | str
Inner: TypeAlias = Scalar | list[Scalar] | dict[str, Scalar]
Value: TypeAlias = Scalar | list[Inner] | dict[str, Inner]
"""What a method may note: plain values, and lists and objects of them, two levels deep."""
JsonObject: TypeAlias = dict[str, Any]
"""Any object of JSON: a request or an answer, a table's row, a model's config."""


class RecordError(ValueError):
    """A record violates the format; the message says what was needed and what came."""


class _RecordPart(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Token(_RecordPart, frozen=True):
    """One emitted token; `text` is empty while a character is incomplete."""

    id: Int
    text: str
    origin: Origin


class LikelyToken(_RecordPart, frozen=True):
    """A likely token of the target (or of one view of the drafter), with its probability."""

    id: Int
    text: str
    prob: Prob


class Tree(_RecordPart, frozen=True):
    """The drafted tree of a round; node 0 is the root, the last token that was already decided.

    parent: Index of each node's parent, -1 for the root, always smaller than the node's own index.
    draft_logp, target_logp: Of a node's token after its parent, None if not computed.
    """

    tokens: Nodes
    parent: Nodes
    texts: list[str] | None = None
    draft_logp: list[Float | None] | None = None
    target_logp: list[Float | None] | None = None


class Span(_RecordPart, frozen=True):
    """Prompt positions [start, stop) of one picture or frame, laid out as rows x cols patches, None
    if they form no grid.
    """

    kind: Literal["image", "video"]
    media: Count
    frame: Count
    start: Count
    stop: Count
    rows: Patches | None = None
    cols: Patches | None = None


class ViewSeen(_RecordPart, frozen=True):
    """What one view of the drafter saw at n positions.

    index: The prompt position of each, -1 for those that are not in the prompt, whose text is
    `words`: a caption, a newline in place of a picture.
    """

    view: str
    n: Count
    index: list[Int]
    words: str = ""


class ChartSeries(_RecordPart, frozen=True):
    """One or several lines of a chart.

    path: Dotted path inside a round, such as `notes.alpha`. A number gives one value per round; an
    object of numbers gives a line for each key, named by it; a list gives a point for each entry.
    nodes, mark: For a list, the paths of the tree nodes its entries stand for and of the nodes to
    mark.
    marked: Name of the marked nodes, which are drawn in the colour of relaxed tokens.
    axis, beside: Of earlier versions; not drawn.
    """

    path: str
    name: str
    axis: Literal["left", "right"] = "left"
    nodes: str | None = None
    mark: str | None = None
    marked: str = ""
    beside: str = ""


class Chart(_RecordPart, frozen=True):
    """A chart over rounds that a method declares.

    kind: "trees" is the line below the small trees of all rounds, of its first series.
    shade: What each round accepted, behind the lines.
    tint: Each accepted word has the colour of the line of the view that gave it most probability,
    weighted by the first series.
    y_right: Of earlier versions; not drawn. Their kind "stack" is drawn as steps.
    """

    id: str
    title: str
    help: str
    kind: Literal["lines", "steps", "stack", "points", "trees"]
    series: Annotated[list[ChartSeries], Meta(max_length=16)]
    y: str
    y_range: tuple[Float, Float] | None = None
    y_right: str | None = None
    shade: Literal["accepted"] | None = None
    tint: Literal["views"] | None = None


class Thumbnail(_RecordPart, frozen=True):
    """A picture or clip of the question as `data:` addresses, None for frames left out."""

    name: str
    frames: list[str | None]


class AskedQuestion(_RecordPart, frozen=True):
    """The question as the user asked it, without the template.

    remarks: What is wrong with a file that was read all the same, in sentences.
    """

    question: str = ""
    media: list[Thumbnail] = []
    remarks: list[str] = []


class Prefix(_RecordPart, frozen=True):
    """The beginning of an answer that was given with the question, not decided by the target."""

    ids: Annotated[list[Int], Meta(max_length=MAX_NEW_TOKENS)] = []
    text: str = ""


class Begin(_RecordPart, frozen=True, tag_field="kind", tag="begin"):
    """The start of a lane. Its seconds are charged in full even if lanes shared the computation.

    versions: Of this package and its libraries; also the machine, and where known the commit and
    the hashes of the loaded weights.
    n_prompt: Positions of the prompt, those of the answer's prefix included.
    exactness: One sentence on what a lossless lane guarantees here.
    charts: The charts that its method declares.
    prefix: What the answer had to begin with; the rounds' tokens follow it.
    chosen: The values that settings "auto" have on this machine.
    """

    request: str
    lane: str
    method: str
    title: str
    settings: dict[str, Value]
    lossless: bool
    pair: str
    models: dict[str, str | None]
    sampling: dict[str, Value]
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_NEW_TOKENS)]
    dtype: str
    device: str
    versions: dict[str, str]
    prompt: str
    n_prompt: Annotated[int, Meta(ge=1, le=MAX_PROMPT)]
    n_visual: Count
    spans: Annotated[list[Span], Meta(max_length=4096)]
    vision_s: Seconds
    prefill_s: Seconds
    draft_prefill_s: Seconds
    seen: Annotated[list[ViewSeen], Meta(max_length=16)] = []
    charts: Annotated[list[Chart], Meta(max_length=8)] = []
    exactness: str = ""
    notes: AskedQuestion = AskedQuestion()
    prefix: Prefix = Prefix()
    chosen: dict[str, Value] = {}
    schema: Literal[1] = 1

    @property
    def before_s(self) -> float:
        """Seconds before the first round: vision, the target's and the drafter's prefill."""
        return self.vision_s + self.prefill_s + self.draft_prefill_s


class Round(_RecordPart, frozen=True, tag_field="kind", tag="round"):
    """One draft, verify, commit.

    tokens: The emitted tokens, after cutting at the end of the answer.
    path: Accepted nodes, root first, so len(path) == 1 + number of draft and relaxed tokens. Token
    i was decided at node path[i]; a token that came from the draft is node path[i + 1].
    candidates: For every token the target's likeliest, most probable first; None in light
    recording.
    views: The drafter's likeliest by view name, if it has views; one list per token, empty at nodes
    that were not fed to the drafter.
    clock_s: The lane's clock at the end of this round: the sum of all its rounds' seconds, no
    prefill.
    notes: Method-specific values by name. About once a second a race adds `load`, the share of all
    cores that other programs have used so far.
    """

    lane: str
    index: Count
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_NODES)]
    tree: Tree
    path: list[Int]
    draft_s: Seconds
    verify_s: Seconds
    commit_s: Seconds
    other_s: Seconds
    clock_s: Seconds
    candidates: list[list[LikelyToken]] | None = None
    views: dict[str, list[list[LikelyToken]]] | None = None
    notes: dict[str, Value] = {}

    @property
    def seconds(self) -> float:
        return self.draft_s + self.verify_s + self.commit_s + self.other_s

    @property
    def n_accepted(self) -> int:
        """Number of emitted tokens that were drafted, exact and relaxed."""
        return sum(token.origin != "target" for token in self.tokens)

    @property
    def n_relaxed(self) -> int:
        """Number of emitted tokens that strict verification would have rejected."""
        return sum(token.origin == "relaxed" for token in self.tokens)

    @property
    def n_drafted(self) -> int:
        """Number of tree nodes without the root."""
        return len(self.tree.tokens) - 1


class Totals(_RecordPart, frozen=True):
    """Sums over rounds, added up only by `fold`."""

    n_tokens: Count = 0
    n_rounds: Count = 0
    n_accepted: Count = 0
    n_relaxed: Count = 0
    n_drafted: Count = 0
    draft_s: Seconds = 0.0
    verify_s: Seconds = 0.0
    commit_s: Seconds = 0.0
    other_s: Seconds = 0.0

    @property
    def decode_s(self) -> float:
        """Seconds of all rounds, without prefill."""
        return self.draft_s + self.verify_s + self.commit_s + self.other_s

    @property
    def tau(self) -> float | None:
        """Tokens per target forward (the target's own included), None before round 1."""
        return self.n_tokens / self.n_rounds if self.n_rounds else None

    @property
    def accepted_per_round(self) -> float | None:
        """Drafted tokens accepted per round, the target's own token not included."""
        return self.n_accepted / self.n_rounds if self.n_rounds else None

    def plus_round(self, round_: Round) -> Totals:
        return Totals(
            n_tokens=self.n_tokens + len(round_.tokens),
            n_rounds=self.n_rounds + 1,
            n_accepted=self.n_accepted + round_.n_accepted,
            n_relaxed=self.n_relaxed + round_.n_relaxed,
            n_drafted=self.n_drafted + round_.n_drafted,
            **{phase: getattr(self, phase) + getattr(round_, phase) for phase in PHASES},
        )


class Confidence(_RecordPart, frozen=True):
    """How sure the target is of a lane's answer.

    word: "fairly sure" was "sure" in older traces.
    prob: The lowest probability that it gives to a token of the answer with a letter or digit.
    right: Share of held-out answers of this word that were right.
    """

    word: Literal["fairly sure", "sure", "unsure", "guessing"]
    prob: Prob
    right: Annotated[float, Meta(ge=0, le=1)]


class End(_RecordPart, frozen=True, tag_field="kind", tag="end"):
    """The end of a lane.

    totals: The fold over the lane's rounds.
    load: Share of all cores that other processes used while the race ran; None if not measured.
    watching: Share of those that showed the race on the same machine, such as a browser; they are
        not part of load.
    again: Seconds of decoding the same answer again, unseen, because one that short cannot be timed
        once.
    confidence: None if nothing is known (see `report.confidence`).
    """

    lane: str
    stop: Stop
    totals: Totals
    peak_bytes: Count | None = None
    message: str | None = None
    load: Share | None = None
    confidence: Confidence | None = None
    watching: Share | None = None
    again: Annotated[list[Seconds], Meta(max_length=MAX_AGAIN)] = []


Record = Begin | Round | End
_decoder = msgspec.json.Decoder(Record)


def _refuse_foreign(value: object) -> NoReturn:
    raise RecordError(
        f"records hold numbers, text, lists and objects, not a {type(value).__name__}: a method's"
        " notes are the likeliest place (`.item()` or `.tolist()` makes plain values of a tensor)"
    )


_encoder = msgspec.json.Encoder(enc_hook=_refuse_foreign)


def fold(rounds: Iterable[Round]) -> Totals:
    """Add up rounds in their order, so that equal rounds give bitwise equal sums."""
    totals = Totals()
    for round_ in rounds:
        totals = totals.plus_round(round_)
    return totals


def check_chart(chart: Chart) -> Chart:
    """Return a method's chart as traces store it; raise RecordError if it breaks the schema."""
    try:
        return msgspec.convert(msgspec.to_builtins(chart), Chart)
    except msgspec.ValidationError as fault:
        raise RecordError(f"chart {chart.id!r}: {fault}") from None


def dumps(record: Record) -> str:
    """Return one line of JSON without a newline. Floats that JSON cannot represent become null."""
    return _encoder.encode(record).decode()


def loads(line: str) -> Record:
    """Parse one line of JSON; raise RecordError if it is not a record."""
    try:
        record = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = str(error)
        if message.endswith("`$.schema`"):
            message += f": written in another format than {SCHEMA}, open it with its own version"
        raise RecordError(message) from None
    validate(record)
    return record


def dump_trace(records: Iterable[Record]) -> str:
    """Return a line for each record."""
    return "".join(f"{dumps(record)}\n" for record in records)


def write_trace(path: str | Path, records: Iterable[Record]) -> None:
    Path(path).write_text(dump_trace(records), "utf-8")


def validate(record: Record) -> None:
    """Raise RecordError if a record contradicts itself."""
    if isinstance(record, Round):
        _validate_round(record)
    elif isinstance(record, Begin):
        _need(
            record.n_visual <= record.n_prompt,
            f"{record.n_visual} visual of {record.n_prompt} prompt tokens",
        )
        for span in record.spans:
            _need(span.start < span.stop <= record.n_prompt, f"span {span} is outside the prompt")
            _need(
                (span.rows or 1) * (span.cols or 1) <= MAX_PATCHES,
                f"span {span} has too many patches",
            )


class LaneRecords(NamedTuple):
    """All records of one lane; `end` is None while it runs, or if a trace was cut short."""

    begin: Begin
    rounds: list[Round]
    end: End | None = None

    @property
    def token_ids(self) -> list[int]:
        return [token.id for round_ in self.rounds for token in round_.tokens]

    @property
    def text(self) -> str:
        return "".join(token.text for round_ in self.rounds for token in round_.tokens)

    @property
    def is_whole(self) -> bool:
        """Whether the answer was written to its end."""
        return self.end is not None and self.end.stop in WHOLE

    @property
    def records(self) -> list[Record]:
        """Return all of them, in a trace's order."""
        return [self.begin, *self.rounds, *([self.end] if self.end else [])]


def gather_lanes(running: Iterable[Record]) -> list[LaneRecords]:
    """Return a race's lanes in order of their begin; RecordError for a record out of order."""
    lanes = {}
    for record in running:
        name = record.lane
        if isinstance(record, Begin):
            _need(name not in lanes, f"lane {name!r} begins twice")
            lanes[name] = LaneRecords(record, [])
            continue
        _need(name in lanes, f"lane {name!r} has a record before its begin")
        lane = lanes[name]
        _need(lane.end is None, f"lane {name!r} has a record after its end")
        if isinstance(record, Round):
            _need(
                record.index == len(lane.rounds),
                f"lane {name!r}: round {record.index} is out of order",
            )
            lane.rounds.append(record)
        else:
            lanes[name] = lane._replace(end=record)
    return list(lanes.values())


def validate_trace(records: Iterable[Record]) -> list[LaneRecords]:
    """Return a trace's lanes; RecordError if records, rounds, clocks or totals disagree.

    A lane without an End is allowed: its trace was cut short.
    """
    records = list(records)
    for record in records:
        validate(record)
    lanes = gather_lanes(records)
    for lane in lanes:
        _validate_lane(*lane)
    return lanes


def _validate_lane(begin: Begin, rounds: list[Round], end: End | None) -> None:
    lane = f"lane {begin.lane!r}"
    totals = fold(rounds)
    limit = begin.max_new_tokens
    _need(totals.n_tokens <= limit, f"{lane}: {totals.n_tokens} tokens, limit {limit}")
    _need(
        not (begin.lossless and totals.n_relaxed),
        f"{lane} is lossless but has {totals.n_relaxed} relaxed tokens",
    )
    clock = 0.0
    for r in rounds:
        clock += r.seconds
        _need(_close(clock, r.clock_s), f"{lane} round {r.index}: clock {r.clock_s}, sum {clock}")
    if end is not None:
        for name in Totals.__struct_fields__:
            stated = getattr(end.totals, name)
            folded = getattr(totals, name)
            _need(
                _close(stated, folded),
                f"{lane}: total {name} is {stated}, the rounds give {folded}",
            )


def _validate_round(r: Round) -> None:
    tree = r.tree
    path = r.path
    size = len(r.tree.tokens)
    _need(len(tree.parent) == size, f"{size} nodes but {len(tree.parent)} parents")
    _need(tree.parent[0] == -1, f"the root's parent is -1, got {tree.parent[0]}")
    _need(
        all(0 <= p < i for i, p in enumerate(tree.parent) if i), "a parent comes before its child"
    )
    for name in ("texts", "draft_logp", "target_logp"):
        n = size if getattr(tree, name) is None else len(getattr(tree, name))
        _need(n == size, f"{name} has {n} entries for {size} nodes")
    by_target = [token.origin == "target" for token in r.tokens]
    _need(not any(by_target[:-1]), "only the last token of a round is the target's own")
    _need(path[:1] == [0], "an accepted path starts at the root")
    _need(all(0 < n < size for n in path[1:]), f"the path leaves the tree of {size} nodes")
    follows = all(tree.parent[b] == a for a, b in pairwise(path))
    _need(follows, "the path does not follow the tree")
    drafted = [token.id for token in r.tokens if token.origin != "target"]
    _need(
        drafted == [tree.tokens[n] for n in path[1:]],
        f"{len(drafted)} accepted tokens are not those of the path",
    )
    for name, lists in [("candidates", r.candidates), *(r.views or {}).items()]:
        _need(lists is None or len(lists) == len(by_target), f"{name}: one list per emitted token")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise RecordError(message)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def tie_nats(dtype: str) -> float:
    """Return the distance of logits below which rounding may decide which one is larger.

    # choice: in bfloat16, two of its steps between 16 and 32, where a target's largest logits lie.
    """
    return 0.25 if dtype == "bfloat16" else 0.05

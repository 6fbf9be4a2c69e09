"""The records of a lane: one `Begin`, a `Round` for every draft-verify-commit, one `End`, as JSON
lines.

The classes are the schema: they decode and check what is read, and `schema()` exports them as JSON
Schema, from which the page's check is made. `validate` and `validate_trace` hold the few rules
between fields and between records that a schema cannot say; `ui/assets/js/trace.js` mirrors those.
Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeAlias

import msgspec
from msgspec import Meta, Struct

SCHEMA = 1
"""Version of the record format, `Begin.schema`; a reader refuses any other."""

MAX_NEW_TOKENS = 4096
"""Tokens of one answer, on the command line and in a trace. It bounds the rounds of a lane too."""
MAX_NEW_TOKENS_SERVED = 1024
"""The same for a visitor of the page, who shares the machine with others."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 10.0
"""Sampling temperatures; 0 is greedy."""
MAX_SEED = 2**31 - 1
MAX_NODES = 4096
MAX_PROMPT = 2**24
MAX_PATCHES = 2**20
LARGEST = 2**53 - 1
"""The largest number of a record: whole numbers up to it are exact in a browser too."""

LAW = "the target's law, by a draw of its own"
"""What a lane promises whose answer is AR's in distribution, not from the same seed."""

Origin = Literal["draft", "relaxed", "target"]
"""draft: drafted, and the target's choice too · relaxed: drafted, accepted all the same · target:
its own.
"""
Stop = Literal["eos", "length", "cancelled", "error"]
PHASES = ("draft_s", "verify_s", "commit_s", "other_s")

Int: TypeAlias = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
Float: TypeAlias = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST)]
Prob: TypeAlias = Annotated[float, Meta(ge=0, le=1.001)]  # a softmax in float16 may round above 1
Scalar: TypeAlias = None | bool | Int | Float | str
Inner: TypeAlias = Scalar | list[Scalar] | dict[str, Scalar]
Value: TypeAlias = Scalar | list[Inner] | dict[str, Inner]
"""What a method may note: plain values, and lists and objects of them, two levels deep."""


class RecordError(ValueError):
    """A record does not keep the format; the message says what was needed and what came."""


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Token(_Part, frozen=True):
    """One emitted token. text: the piece it adds to the answer, empty while a character is
    incomplete.
    """

    id: Int
    text: str
    origin: Origin


class Candidate(_Part, frozen=True):
    """A token that the target (or one view of the drafter) held likely, with its probability."""

    id: Int
    text: str
    prob: Prob


class Tree(_Part, frozen=True):
    """The drafted tree of a round; node 0 is the root, the last token that was already decided.

    parent: index of each node's parent, -1 for the root, always smaller than the node's own index.
    draft_logp, target_logp: log-probability of a node's token after its parent, None where not
    computed.
    """

    tokens: Annotated[list[Int], Meta(min_length=1, max_length=MAX_NODES)]
    parent: Annotated[list[Int], Meta(min_length=1, max_length=MAX_NODES)]
    texts: list[str] | None = None
    draft_logp: list[Float | None] | None = None
    target_logp: list[Float | None] | None = None


class Span(_Part, frozen=True):
    """Prompt positions [start, stop) that show one picture or one frame, laid out as rows x cols
    patches.

    rows and cols are None where the model's tokens form no grid.
    """

    kind: Literal["image", "video"]
    media: Count
    frame: Count
    start: Count
    stop: Count
    rows: Annotated[int, Meta(ge=1, le=MAX_PATCHES)] | None = None
    cols: Annotated[int, Meta(ge=1, le=MAX_PATCHES)] | None = None


class Seen(_Part, frozen=True):
    """What one view of the drafter saw: its length, and the prompt position that each of its
    positions is.

    -1 stands for a position that is not of the prompt (a caption, a newline in place of a picture);
    words is the text of those.
    """

    view: str
    n: Count
    index: list[Int]
    words: str = ""


class Series(_Part, frozen=True):
    """One line of a chart, or several.

    path: dotted path inside a round, `notes.alpha` say. A number gives one value a round; an object
    of numbers gives a line for each key, named by it; a list gives a point for each entry. nodes,
    mark: beside a list, the paths of the tree nodes its entries stand for and of the nodes to mark;
    marked ones are drawn in the colour of relaxed tokens and named `marked`. axis: "right" draws
    against a second axis.
    """

    path: str
    name: str
    axis: Literal["left", "right"] = "left"
    nodes: str | None = None
    mark: str | None = None
    marked: str = ""


class Chart(_Part, frozen=True):
    """A chart over rounds that a method declares. shade: how much each round accepted, behind the
    lines.
    """

    id: str
    title: str
    help: str
    kind: Literal["lines", "steps", "stack", "points"]
    series: Annotated[list[Series], Meta(max_length=16)]
    y: str
    y_range: tuple[Float, Float] | None = None
    y_right: str | None = None
    shade: Literal["accepted"] | None = None


class Shown(_Part, frozen=True):
    """A picture or clip of the question, small: frames: `data:` addresses, None where left out."""

    name: str
    frames: list[str | None]


class Asked(_Part, frozen=True):
    """What a person asked, beside the templated prompt."""

    question: str = ""
    media: list[Shown] = []


class Begin(_Part, frozen=True, tag_field="kind", tag="begin"):
    """How a lane starts. Seconds are charged to this lane in full, also when lanes shared the
    computation.

    exactness: one sentence on what a lossless lane guarantees here. charts: those its method
    declares.
    """

    request: str
    lane: str
    method: str
    title: str
    settings: dict[str, Value]
    lossless: bool
    pair: str
    models: dict[str, str | None]
    sampling: dict[str, Scalar]
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
    seen: Annotated[list[Seen], Meta(max_length=16)] = []
    charts: Annotated[list[Chart], Meta(max_length=8)] = []
    exactness: str = ""
    notes: Asked = Asked()
    schema: Literal[1] = 1

    @property
    def before_s(self) -> float:
        """Seconds before the first round: vision and prefill of the target, and all the drafter
        did.
        """
        return self.vision_s + self.prefill_s + self.draft_prefill_s


class Round(_Part, frozen=True, tag_field="kind", tag="round"):
    """One draft, verify, commit.

    tokens: what this round emitted, after cutting at the end of the answer. path: accepted nodes,
    root first, so len(path) == 1 + number of draft and relaxed tokens. Token i was
        decided at node path[i]; a token that came from the draft is node path[i + 1].
    candidates: for every token the target's likeliest, most probable first; None when recording is
    light. views: the same by view name, from the drafter's side, where the drafter has views; one
    list per token,
        empty at nodes that the drafter was never asked about.
    clock_s: the lane's own clock at the end of this round: the sum of all its rounds' seconds, no
    prefill. notes: what is particular to the method, by name.
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
    candidates: list[list[Candidate]] | None = None
    views: dict[str, list[list[Candidate]]] | None = None
    notes: dict[str, Value] = {}

    @property
    def seconds(self) -> float:
        return self.draft_s + self.verify_s + self.commit_s + self.other_s

    @property
    def n_accepted(self) -> int:
        """Emitted tokens that were drafted, exact and relaxed."""
        return sum(token.origin != "target" for token in self.tokens)

    @property
    def n_relaxed(self) -> int:
        """Emitted tokens that the target alone would not have chosen."""
        return sum(token.origin == "relaxed" for token in self.tokens)

    @property
    def n_drafted(self) -> int:
        """Nodes of the tree without the root."""
        return len(self.tree.tokens) - 1


class Totals(_Part, frozen=True):
    """Sums over rounds. `fold` is the only place that adds them up."""

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
        """All seconds of all rounds, no prefill."""
        return self.draft_s + self.verify_s + self.commit_s + self.other_s

    @property
    def tau(self) -> float | None:
        """Acceptance length: tokens per target forward, the target's own included; None before
        round 1.
        """
        return self.n_tokens / self.n_rounds if self.n_rounds else None

    @property
    def accepted_per_round(self) -> float | None:
        """Drafted tokens accepted per round, the target's own token not included."""
        return self.n_accepted / self.n_rounds if self.n_rounds else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of decoding; None where no time was measured."""
        return self.n_tokens / self.decode_s if self.decode_s > 0 else None

    def plus(self, round_: Round) -> Totals:
        return Totals(
            n_tokens=self.n_tokens + len(round_.tokens),
            n_rounds=self.n_rounds + 1,
            n_accepted=self.n_accepted + round_.n_accepted,
            n_relaxed=self.n_relaxed + round_.n_relaxed,
            n_drafted=self.n_drafted + round_.n_drafted,
            **{phase: getattr(self, phase) + getattr(round_, phase) for phase in PHASES},
        )


class End(_Part, frozen=True, tag_field="kind", tag="end"):
    """How a lane ended. totals: the fold over the lane's rounds.

    load: share of all cores that other processes used while the race ran; None where it was not
    measured.
    """

    lane: str
    stop: Stop
    totals: Totals
    peak_bytes: Count | None = None
    message: str | None = None
    load: Annotated[float, Meta(ge=0, le=1.001)] | None = None


Record = Begin | Round | End
_decoder = msgspec.json.Decoder(Record)


def _foreign(value: object) -> NoReturn:
    raise RecordError(
        f"records hold numbers, text, lists and objects, not a {type(value).__name__}: a method's"
        " notes are the likeliest place (`.item()` or `.tolist()` makes plain values of a tensor)"
    )


_encoder = msgspec.json.Encoder(enc_hook=_foreign)


def schema() -> dict[str, Any]:
    return msgspec.json.schema(Record)


def fold(rounds: Iterable[Round]) -> Totals:
    """Totals over rounds, added in their order (so that equal rounds give equal sums, bit for
    bit).
    """
    totals = Totals()
    for round_ in rounds:
        totals = totals.plus(round_)
    return totals


def checked(chart: Chart) -> Chart:
    """A chart that a method declares, as traces hold it; RecordError where it breaks the schema."""
    try:
        return msgspec.convert(msgspec.to_builtins(chart), Chart)
    except msgspec.ValidationError as fault:
        raise RecordError(f"chart {chart.id!r}: {fault}") from None


def dumps(record: Record) -> str:
    """One line of JSON, no newline. Floats that JSON cannot hold become null."""
    return _encoder.encode(record).decode()


def loads(line: str) -> Record:
    """The record of one line of JSON; RecordError where it is none."""
    try:
        record = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RecordError(_other_format(line) or str(error)) from None
    validate(record)
    return record


class _Head(Struct):
    kind: str = ""
    schema: int = SCHEMA


def _other_format(line: str) -> str | None:
    """The sentence for a begin of another version of the format, whatever its fields are; None for
    ours.
    """
    try:
        head = msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if head.kind != "begin" or head.schema == SCHEMA:
        return None
    return (
        f"written in format {head.schema}, read here is format {SCHEMA}: open it with its own"
        " version"
    )


def write(path: str | Path, records: Iterable[Record]) -> None:
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(dumps(record) + "\n" for record in records)


def validate(record: Record) -> None:
    """Raise RecordError where a record contradicts itself."""
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


class Lane(NamedTuple):
    """All records of one lane; `end` is None while it runs, or where a trace was cut short."""

    begin: Begin
    rounds: list[Round]
    end: End | None = None

    @property
    def token_ids(self) -> list[int]:
        return [token.id for round_ in self.rounds for token in round_.tokens]

    @property
    def text(self) -> str:
        return "".join(token.text for round_ in self.rounds for token in round_.tokens)


def gather(running: Iterable[Record]) -> list[Lane]:
    """The lanes of a race, in order of their begin; RecordError where a record stands out of
    order.
    """
    lanes: dict[str, Lane] = {}
    for record in running:
        name = record.lane
        if isinstance(record, Begin):
            _need(name not in lanes, f"lane {name!r} begins twice")
            lanes[name] = Lane(record, [])
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


def validate_trace(records: Iterable[Record]) -> list[Lane]:
    """The lanes of a trace; RecordError where records, rounds, clocks or totals disagree.

    A lane without an End is a trace that was cut short; that is allowed.
    """
    records = list(records)
    for record in records:
        validate(record)
    lanes = gather(records)
    for lane in lanes:
        _validate_lane(*lane)
    return lanes


def _validate_lane(begin: Begin, rounds: list[Round], end: End | None) -> None:
    lane, totals = f"lane {begin.lane!r}", fold(rounds)
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
            found, folded = getattr(end.totals, name), getattr(totals, name)
            _need(
                _close(found, folded), f"{lane}: total {name} is {found}, the rounds give {folded}"
            )


def _validate_round(r: Round) -> None:
    tree, path, size = r.tree, r.path, len(r.tree.tokens)
    _need(len(tree.parent) == size, f"{size} nodes but {len(tree.parent)} parents")
    _need(tree.parent[0] == -1, f"the root's parent is -1, got {tree.parent[0]}")
    _need(
        all(0 <= p < i for i, p in enumerate(tree.parent) if i), "a parent comes before its child"
    )
    for name in ("texts", "draft_logp", "target_logp"):
        n = size if getattr(tree, name) is None else len(getattr(tree, name))
        _need(n == size, f"{name} has {n} entries for {size} nodes")
    own = [token.origin == "target" for token in r.tokens]
    _need(not any(own[:-1]), "only the last token of a round is the target's own")
    _need(path[:1] == [0], "an accepted path starts at the root")
    _need(all(0 < n < size for n in path[1:]), f"the path leaves the tree of {size} nodes")
    follows = all(tree.parent[b] == a for a, b in zip(path, path[1:], strict=False))
    _need(follows, "the path does not follow the tree")
    drafted = [token.id for token in r.tokens if token.origin != "target"]
    _need(
        drafted == [tree.tokens[n] for n in path[1:]],
        f"{len(drafted)} accepted tokens are not those of the path",
    )
    for name, lists in [("candidates", r.candidates), *(r.views or {}).items()]:
        _need(lists is None or len(lists) == len(own), f"{name}: one list per emitted token")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise RecordError(message)


def _close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)

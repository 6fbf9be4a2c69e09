"""What leaves the engine: one Begin, many Rounds, one End for every lane of a request.

Given plain Python values, gives JSON lines and back; checks what it reads and says which line is wrong. Every
colour, chart, number and table elsewhere is a fold over these records.
Knows no tensors, no models, no pictures: standard library only. Long because the format is one thing to read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TextIO

SCHEMA = 1
"""Version of the record format; a reader refuses any other."""

Origin = Literal["draft", "relaxed", "target"]
"""draft: drafted, and what the target says · relaxed: drafted and let through · target: its own."""

Stop = Literal["eos", "length", "cancelled", "error"]

ORIGINS = ("draft", "relaxed", "target")
STOPS = ("eos", "length", "cancelled", "error")
MOST_PROMPT = 2**24
"""Tokens of a prompt; whoever draws one walks over its positions."""
MOST_PATCHES = 2**20
"""Patches of one picture."""
PHASES = ("draft_s", "verify_s", "commit_s", "other_s")


class RecordError(ValueError):
    """A record does not keep the format; the message says what was needed and what came."""


@dataclass(frozen=True)
class Token:
    """One emitted token. `text` is the piece it adds to the answer: empty while a character is incomplete."""

    id: int
    text: str
    origin: Origin


@dataclass(frozen=True)
class Candidate:
    """A token the target (or one view of the drafter) held likely, with its probability."""

    id: int
    text: str
    prob: float


@dataclass(frozen=True)
class Tree:
    """The drafted tree of a round; node 0 is the root, the last token that was already decided.

    parent: index of each node's parent, -1 for the root, always smaller than the node's own index.
    draft_logp / target_logp: log-probability of a node's token after its parent, None where nobody computed
    it.
    """

    tokens: list[int]
    parent: list[int]
    texts: list[str] | None = None
    draft_logp: list[float | None] | None = None
    target_logp: list[float | None] | None = None

    @property
    def depth(self) -> list[int]:
        """Depth of every node, root 0."""
        depth: list[int] = []
        for parent in self.parent:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return depth


@dataclass(frozen=True)
class Span:
    """Prompt positions [start, stop) that show one picture or one frame, laid out as rows x cols patches.

    rows and cols are None where the model's tokens form no grid.
    """

    kind: Literal["image", "video"]
    media: int
    frame: int
    start: int
    stop: int
    rows: int | None = None
    cols: int | None = None


@dataclass(frozen=True)
class Seen:
    """What one view of the drafter saw: its length, and for every position the prompt position it stands for.

    -1 stands for a position that is not of the prompt (a caption, a newline in place of a picture); words is
    the text of those.
    """

    view: str
    n: int
    index: list[int]
    words: str = ""


@dataclass(frozen=True)
class Begin:
    """How a lane starts. Seconds are charged to this lane in full, also when lanes shared the computation."""

    request: str
    lane: str
    method: str
    title: str
    settings: dict[str, Any]
    lossless: bool
    pair: str
    models: dict[str, str | None]
    sampling: dict[str, Any]
    max_new_tokens: int
    dtype: str
    device: str
    versions: dict[str, str]
    prompt: str
    n_prompt: int
    n_visual: int
    spans: list[Span]
    vision_s: float
    prefill_s: float
    draft_prefill_s: float
    seen: list[Seen] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def before_s(self) -> float:
        """Seconds before the first round: vision and prefill of the target, and all the drafter did."""
        return self.vision_s + self.prefill_s + self.draft_prefill_s


@dataclass(frozen=True)
class Round:
    """One draft, verify, commit.

    tokens: what this round emitted, after cutting at the end of the answer.
    path: accepted nodes, root first, so len(path) == 1 + number of draft and relaxed tokens. Token i was
        decided at node path[i]; a token that came from the draft is node path[i + 1].
    candidates: for every token the target's likeliest, most probable first; None when recording is light.
    views: the same by view name, from the drafter's side, where the drafter has views; one list per token,
        empty at nodes that the drafter was never asked about.
    clock_s: the lane's own clock at the end of this round: the sum of all its rounds' seconds, no prefill.
    """

    lane: str
    index: int
    tokens: list[Token]
    tree: Tree
    path: list[int]
    draft_s: float
    verify_s: float
    commit_s: float
    other_s: float
    clock_s: float
    candidates: list[list[Candidate]] | None = None
    views: dict[str, list[list[Candidate]]] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """All seconds of this round."""
        return self.draft_s + self.verify_s + self.commit_s + self.other_s

    @property
    def n_accepted(self) -> int:
        """Kept tokens that came from the draft (exact and relaxed)."""
        return sum(token.origin != "target" for token in self.tokens)

    @property
    def n_relaxed(self) -> int:
        """Kept tokens that the target alone would not have said."""
        return sum(token.origin == "relaxed" for token in self.tokens)

    @property
    def n_drafted(self) -> int:
        """Nodes of the tree without the root."""
        return len(self.tree.tokens) - 1


@dataclass(frozen=True)
class Totals:
    """Sums over rounds. `fold` is the only place that adds them up."""

    n_tokens: int = 0
    n_rounds: int = 0
    n_accepted: int = 0
    n_relaxed: int = 0
    n_drafted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    other_s: float = 0.0

    @property
    def decode_s(self) -> float:
        """All seconds of all rounds, no prefill."""
        return self.draft_s + self.verify_s + self.commit_s + self.other_s

    @property
    def tau(self) -> float | None:
        """Tokens per target forward, the target's own token included; None before the first round."""
        return self.n_tokens / self.n_rounds if self.n_rounds else None

    @property
    def accepted_per_round(self) -> float | None:
        """Drafted tokens kept per round, the target's own token not included."""
        return self.n_accepted / self.n_rounds if self.n_rounds else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of decoding; None where no time was measured."""
        return self.n_tokens / self.decode_s if self.decode_s > 0 else None

    def plus(self, round_: Round) -> Totals:
        """These totals with one more round."""
        return Totals(
            n_tokens=self.n_tokens + len(round_.tokens),
            n_rounds=self.n_rounds + 1,
            n_accepted=self.n_accepted + round_.n_accepted,
            n_relaxed=self.n_relaxed + round_.n_relaxed,
            n_drafted=self.n_drafted + round_.n_drafted,
            **{phase: getattr(self, phase) + getattr(round_, phase) for phase in PHASES},
        )


@dataclass(frozen=True)
class End:
    """How a lane ended. `totals` equals the fold over the lane's rounds."""

    lane: str
    stop: Stop
    totals: Totals
    peak_bytes: int | None = None
    message: str | None = None


Record = Begin | Round | End
_KINDS: dict[str, type] = {"begin": Begin, "round": Round, "end": End}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


def fold(rounds: Iterable[Round]) -> Totals:
    """Totals over rounds, added in their order (so that equal rounds give equal sums, bit for bit)."""
    totals = Totals()
    for round_ in rounds:
        totals = totals.plus(round_)
    return totals


def to_dict(record: Record) -> dict[str, Any]:
    """JSON-safe dictionary of a record, `kind` first. Floats that JSON cannot hold become None."""
    return {"kind": _NAMES[type(record)], **_plain(record)}


def from_dict(data: Any) -> Record:
    """The record a dictionary stands for; RecordError when it is none."""
    if not isinstance(data, dict):
        raise RecordError(f"a record is a JSON object, got {type(data).__name__}")
    kind = data.get("kind")
    if kind not in _KINDS:
        raise RecordError(f"unknown kind {kind!r}; known: {', '.join(_KINDS)}")
    data = {key: value for key, value in data.items() if key != "kind"}
    if kind == "begin" and data.get("schema") != SCHEMA:
        raise RecordError(f"format {data.get('schema')!r} is not readable here, this version reads {SCHEMA}")
    try:
        record = _READ[kind](data)
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"a {kind} record is incomplete or has a value of a wrong type: {error}") from error
    validate(record)
    return record


def dumps(record: Record) -> str:
    """One line of JSON, no newline."""
    return json.dumps(to_dict(record), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def loads(line: str) -> Record:
    """The record of one line of JSON."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(f"not a line of JSON: {error}") from error
    return from_dict(data)


def write(path: str | Path, records: Iterable[Record]) -> None:
    """Write records as JSON lines."""
    with Path(path).open("w", encoding="utf-8") as file:
        for record in records:
            file.write(dumps(record) + "\n")


def read(source: str | Path | TextIO) -> Iterator[Record]:
    """Records of a JSON lines file or an open text stream; a bad line is named by its number."""
    if isinstance(source, str | Path):
        with Path(source).open(encoding="utf-8") as file:
            yield from read(file)
        return
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            yield loads(line)
        except RecordError as error:
            raise RecordError(f"line {number}: {error}") from error


def validate(record: Record) -> None:
    """Raise RecordError where a record contradicts itself."""
    if isinstance(record, Round):
        _validate_round(record)
    elif isinstance(record, End):
        _need(record.stop in STOPS, f"stop is one of {', '.join(STOPS)}, got {record.stop!r}")
    else:
        _need(
            1 <= record.n_prompt <= MOST_PROMPT,
            f"a prompt has 1 to {MOST_PROMPT} tokens, got {record.n_prompt}",
        )
        _need(
            0 <= record.n_visual <= record.n_prompt, f"{record.n_visual} visual of {record.n_prompt} tokens"
        )
        for span in record.spans:
            _need(0 <= span.start < span.stop <= record.n_prompt, f"span {span} is outside the prompt")
            rows, cols = (1 if v is None else v for v in (span.rows, span.cols))
            _need(rows >= 1 and cols >= 1 and rows * cols <= MOST_PATCHES, f"span {span} has no such grid")


def validate_trace(records: Iterable[Record]) -> dict[str, tuple[Begin, list[Round], End | None]]:
    """Lanes of a trace by name, in order; RecordError where rounds, clocks or totals disagree.

    A lane without an End is a trace that was cut short; that is allowed.
    """
    lanes: dict[str, tuple[Begin, list[Round], End | None]] = {}
    for record in records:
        validate(record)
        if isinstance(record, Begin):
            _need(record.lane not in lanes, f"lane {record.lane!r} begins twice")
            lanes[record.lane] = (record, [], None)
            continue
        _need(record.lane in lanes, f"lane {record.lane!r} has a record before its begin")
        begin, rounds, end = lanes[record.lane]
        _need(end is None, f"lane {record.lane!r} has a record after its end")
        if isinstance(record, Round):
            _need(record.index == len(rounds), f"lane {record.lane!r}: round {record.index} is out of order")
            rounds.append(record)
        else:
            lanes[record.lane] = (begin, rounds, record)
    for lane, (begin, rounds, end) in lanes.items():
        _validate_lane(lane, begin, rounds, end)
    return lanes


def _validate_lane(lane: str, begin: Begin, rounds: list[Round], end: End | None) -> None:
    totals = fold(rounds)
    _need(
        totals.n_tokens <= begin.max_new_tokens,
        f"lane {lane!r}: {totals.n_tokens} tokens, limit {begin.max_new_tokens}",
    )
    _need(
        not (begin.lossless and totals.n_relaxed),
        f"lane {lane!r} is lossless but has {totals.n_relaxed} relaxed tokens",
    )
    clock = 0.0
    for round_ in rounds:
        clock += round_.seconds
        _need(
            _close(clock, round_.clock_s),
            f"lane {lane!r} round {round_.index}: clock {round_.clock_s}, sum {clock}",
        )
    if end is not None:
        for item in fields(Totals):
            told, folded = getattr(end.totals, item.name), getattr(totals, item.name)
            _need(
                _close(told, folded), f"lane {lane!r}: total {item.name} is {told}, the rounds give {folded}"
            )


def _validate_round(r: Round) -> None:
    size = len(r.tree.tokens)
    _need(size >= 1, "a tree has at least its root")
    _need(len(r.tree.parent) == size, f"{size} nodes but {len(r.tree.parent)} parents")
    _need(r.tree.parent[0] == -1, f"the root's parent is -1, got {r.tree.parent[0]}")
    _need(all(0 <= p < i for i, p in enumerate(r.tree.parent) if i), "a parent comes before its child")
    for name in ("texts", "draft_logp", "target_logp"):
        values = getattr(r.tree, name)
        _need(
            values is None or len(values) == size, f"{name} has {len(values or ())} entries for {size} nodes"
        )
    _need(bool(r.tokens), "a round emits at least one token")
    _need(all(t.origin in ORIGINS for t in r.tokens), f"an origin is one of {', '.join(ORIGINS)}")
    _need(
        all(t.origin != "target" for t in r.tokens[:-1]), "only the last token of a round is the target's own"
    )
    _need(r.path[:1] == [0], "an accepted path starts at the root")
    _need(all(0 < n < size for n in r.path[1:]), f"path {r.path} leaves the tree of {size} nodes")
    _need(
        all(r.tree.parent[b] == a for a, b in zip(r.path, r.path[1:], strict=False)),
        f"path {r.path} does not follow the tree",
    )
    _need(len(r.path) == 1 + r.n_accepted, f"path {r.path} for {r.n_accepted} accepted tokens")
    drafted = [t.id for t in r.tokens if t.origin != "target"]
    _need(drafted == [r.tree.tokens[n] for n in r.path[1:]], "accepted tokens are not those of the path")
    for name, lists in [("candidates", r.candidates), *(r.views or {}).items()]:
        _need(lists is None or len(lists) == len(r.tokens), f"{name}: one list per emitted token")
    for phase in PHASES:
        value = getattr(r, phase)
        _need(isinstance(value, int | float) and value >= 0, f"{phase} is a number of seconds, got {value!r}")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise RecordError(message)


def _close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def _plain(value: Any) -> Any:
    """A value of JSON's own types."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    raise RecordError(f"{type(value).__name__} has no place in a record")


def _candidates(lists: list[list[dict[str, Any]]] | None) -> list[list[Candidate]] | None:
    return None if lists is None else [[Candidate(**c) for c in one] for one in lists]


def _read_begin(data: dict[str, Any]) -> Begin:
    return Begin(
        **{
            **data,
            "spans": [Span(**span) for span in data["spans"]],
            "seen": [Seen(**seen) for seen in data.get("seen", [])],
        }
    )


def _read_round(data: dict[str, Any]) -> Round:
    views = data.get("views")
    return Round(
        **{
            **data,
            "tokens": [Token(**token) for token in data["tokens"]],
            "tree": Tree(**data["tree"]),
            "candidates": _candidates(data.get("candidates")),
            "views": None if views is None else {name: _candidates(lists) for name, lists in views.items()},
        }
    )


def _read_end(data: dict[str, Any]) -> End:
    return End(**{**data, "totals": Totals(**data["totals"])})


_READ = {"begin": _read_begin, "round": _read_round, "end": _read_end}

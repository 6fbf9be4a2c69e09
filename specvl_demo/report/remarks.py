"""Remarks on a lane compared with the AR lane: whether the answers agree, whether the times are
valid, where its speed comes from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from specvl_demo.records import LaneRecords, Round, tie_nats
from specvl_demo.report.metrics import FEWEST, accepted_by_depth, compare_with_ar, fixed, timings

MIN_TOKENS = 20
"""Number of timed tokens below which a speedup is only a rough one."""
TIMED_TOKENS = 40
"""Number of tokens up to which an answer is decoded again to be timed."""
MAX_LOAD = 0.25
"""Share of the machine that other programs may use before times count as disturbed."""
RULES = {"tokens": MIN_TOKENS, "load": MAX_LOAD, "drafts": FEWEST}
"""What the page needs of them, and how many drafts of a depth tell of it."""
MAX_JITTER = 0.3
"""Spread of AR steps, the interquartile range over the median, above which times count so too."""
RUN, REPEATED = 4, 0.5
"""Length of the runs of tokens, and the share that came before in an answer that repeats itself."""
CUT = "this race was not run to its end"
"""Why a race of which a lane was stopped has no speedups."""


@dataclass(frozen=True)
class Agreement:
    """How a lane's answer compares with AR's.

    Attributes:
        kind: "same": token for token. "so_far": one was stopped, and what both have is the same.
            "tie": a lossless lane's first difference is due to rounding. "differs" otherwise.
        at: The first token that differs, else the number of tokens in common.
        gap: By how many nats the target preferred AR's token there, including the noise of the draw
            when sampling; None if not recorded.
        alike: For two complete answers, the share of tokens that agree once they are aligned, else
            None.
        dtype: Of a tie, the precision whose rounding decided.
    """

    kind: Literal["same", "so_far", "tie", "differs"]
    at: int
    gap: float | None = None
    alike: float | None = None
    dtype: str | None = None

    def sentence(self) -> str:
        if self.kind == "same":
            return "the AR answer, token for token"
        if self.kind == "so_far":
            return f"the same so far: {self.at} tokens, then one of the two was stopped"
        alike = "" if self.alike is None else f"; {fixed(100 * self.alike, 0)} % of the text agrees"
        tie = ""
        if self.kind == "tie":
            tie = (
                f", a near tie that rounding in {self.dtype} decided"
                f" ({fixed(self.gap or 0.0, 3)} nats)"
            )
        return f"differs from token {self.at + 1} on{tie}{alike}"


@dataclass(frozen=True)
class Doubt:
    """Why the times of a lane are only rough: a `sentence` without capital letter and full stop.

    tokens: How many both lanes have, if only these are too few. load: Of disturbed ones, what other
    programs, or the browser that showed the race, used. about: The speedup that is told all the
    same, as a rough one and with the reason; None where nothing was measured.
    """

    kind: Literal["short", "disturbed"]
    sentence: str
    tokens: int | None = None
    load: float | None = None
    about: float | None = None


Change = tuple[int, int, int, int]
"""Tokens [start, stop) of AR's answer, and those of the lane's in their place."""


class LaneRemarks(Struct, frozen=True):
    """How a lane compares with AR; None for what AR itself, or a race without AR, does not have.

    doubt: Why its times are only rough. why: See `Comparison.why_this_speed`. speedup_total: With
    vision and prefill, of answers of one length: in a longer one these count for less. changes: See
    `find_changes`. accepted_by_depth: Of every lane, see `metrics.accepted_by_depth`; of few
    drafts, if no depth has more. repeats: See `repetition_sentence`.
    """

    agreement: Agreement | None = None
    doubt: Doubt | None = None
    why: str | None = None
    speedup_total: float | None = None
    changes: list[Change] | None = None
    accepted_by_depth: list[float] = []
    repeats: str | None = None


class Remarks(Struct, frozen=True, tag_field="kind", tag="remarks"):
    """The last record of a race, which a trace need not store: it follows from the others.

    cut: Why there are no speedups, None if every lane was run to its end. lanes: By name.
    """

    cut: str | None
    lanes: dict[str, LaneRemarks]


def rough_factor(factor: float) -> str:
    return f"about {fixed(factor, 1)}×"


def compare_answers(lane: LaneRecords, ar: LaneRecords) -> Agreement:
    """Compare two answers to one question, as far as both go."""
    ours = lane.token_ids
    theirs = ar.token_ids
    whole = lane.is_whole and ar.is_whole
    changes = find_changes(theirs, ours)
    if not changes:
        same = whole and len(ours) == len(theirs)
        return Agreement("same" if same else "so_far", min(len(ours), len(theirs)))
    at = changes[0][0]
    gap = _logit_gap(ar, at, ours[at])
    dtype = lane.begin.dtype
    n_common = len(theirs) - sum(stop - start for start, stop, *_ in changes)
    alike = n_common / max(len(ours), len(theirs)) if whole else None
    if lane.begin.lossless and gap is not None and abs(gap) < tie_nats(dtype):
        return Agreement("tie", at, gap, alike, dtype)
    return Agreement("differs", at, gap, alike)


def timing_doubt(lane: LaneRecords, ar: LaneRecords) -> Doubt | None:
    """Return why the times of two lanes are only rough; None if they are not."""
    tokens = min(len(lane.token_ids), len(ar.token_ids))
    n_timed = min(len(each.token_ids) * len(timings(each)) for each in (lane, ar))
    some = f"{tokens} token{' is' if tokens == 1 else 's are'}"
    few = "" if n_timed >= MIN_TOKENS else f"{some} too few to time; {MIN_TOKENS} are needed"
    users = {"load": "other programs", "watching": "drawing this page"}
    load, who = max(
        (getattr(timed.end, share, None) or 0.0, user)
        for share, user in users.items()
        for timed in (lane, ar)
    )
    times = compare_with_ar(lane, ar)
    about = times.rough_speedup
    impossible = times.why_doubtful()
    whys = [f"{who} kept {fixed(100 * load, 0)} % of the machine busy"] * (load > MAX_LOAD)
    if impossible:
        whys.append(f"by tokens/s {impossible}: only typical (median) rounds count")
    if few and not whys:
        return Doubt("short", few, tokens=tokens, about=about)
    why = "; ".join(whys) or _jitter_sentence(ar)
    if not why:
        return None
    sentence = "; ".join(filter(None, (f"timing disturbed ({why})", few)))
    return Doubt("disturbed", sentence, load=load, about=about)


def _jitter_sentence(ar: LaneRecords) -> str:
    """Return how far apart AR's steps lie if that is too far to time it; "" otherwise."""
    steps = sorted(r.seconds for r in ar.rounds)
    first, middle, third = (steps[part * len(steps) // 4] for part in (1, 2, 3))
    if len(steps) < MIN_TOKENS or third - first <= MAX_JITTER * middle:
        return ""
    return f"half of the AR steps lie outside {1e3 * first:.3g} to {1e3 * third:.3g} ms"


def told_speedup(lane: LaneRecords, lanes: Sequence[LaneRecords]) -> str | None:
    """Return the speedup of a lane as it is told, hedged where it is doubtful, or None."""
    ar = ar_lane(lanes)
    if ar is None or lane is ar or _why_cut(lanes):
        return None
    if doubt := timing_doubt(lane, ar):
        return None if doubt.about is None else rough_factor(doubt.about)
    speedup = compare_with_ar(lane, ar).speedup_decode
    return None if speedup is None else f"{fixed(speedup, 2)}×"


def repetition_sentence(lane: LaneRecords) -> str | None:
    """Return a sentence, without full stop, on an answer that repeats itself; None otherwise."""
    ids = lane.token_ids
    runs = list(zip(*(ids[at:] for at in range(RUN))))
    share = 1 - len(set(runs)) / len(runs) if runs else 0.0
    if share < REPEATED:
        return None
    before = f"{fixed(100 * share, 0)} % of its runs of {RUN} tokens came before"
    return f"The answer repeats itself, which makes it easy to draft: {before}"


def lane_remark(lane: LaneRecords, lanes: Sequence[LaneRecords]) -> str | None:
    """Return the remark on a lane: its answer, then its time. None for AR, or without it."""
    of_lane = _lane_remarks(lane, ar_lane(lanes))
    if of_lane.agreement is None or not lane.rounds:
        return None
    text = of_lane.agreement.sentence()
    time = _why_cut(lanes) or (of_lane.doubt.sentence if of_lane.doubt else of_lane.why)
    sentence = f"{text[:1].upper()}{text[1:]}" + (f"; {time}." if time else ".")
    return f"{sentence} {of_lane.repeats}." if of_lane.repeats else sentence


def race_remarks(lanes: Sequence[LaneRecords]) -> Remarks:
    """Return how the lanes of a race compare with its AR lane."""
    ar = ar_lane(lanes)
    return Remarks(_why_cut(lanes), {lane.begin.lane: _lane_remarks(lane, ar) for lane in lanes})


def _lane_remarks(lane: LaneRecords, ar: LaneRecords | None) -> LaneRemarks:
    by_depth = accepted_by_depth(lane.rounds) or accepted_by_depth(lane.rounds, 1)
    if ar is None or lane is ar:
        return LaneRemarks(accepted_by_depth=by_depth)
    times = compare_with_ar(lane, ar)
    changes = find_changes(ar.token_ids, lane.token_ids)
    agreed = compare_answers(lane, ar)
    doubt = timing_doubt(lane, ar)
    return LaneRemarks(
        agreed,
        doubt,
        times.why_this_speed(rough=doubt is not None),
        times.speedup_total if len(lane.token_ids) == len(ar.token_ids) else None,
        changes,
        by_depth,
        repetition_sentence(lane),
    )


def ar_lane(lanes: Sequence[LaneRecords]) -> LaneRecords | None:
    return next((lane for lane in lanes if lane.begin.method == "ar"), None)


def _why_cut(lanes: Sequence[LaneRecords]) -> str | None:
    return None if all(lane.is_whole for lane in lanes) else CUT


def _logit_gap(ar: LaneRecords, at: int, other: int) -> float | None:
    """Return by how many nats AR's token was ahead of another at a token of its answer, if
    recorded: when sampling, only the runner-up is.
    """
    sampled = bool(ar.begin.sampling.get("temperature"))
    for r in ar.rounds:
        if at < len(r.tokens):
            if sampled:
                rival, gap = (_noted_number(r, name, at) for name in ("rival", "gap"))
                return gap if rival == other else None
            listed = r.candidates[at] if r.candidates else []
            probs = {candidate.id: candidate.prob for candidate in listed}
            mine = probs.get(r.tokens[at].id)
            its = probs.get(other)
            return math.log(mine / its) if mine and its else None
        at -= len(r.tokens)
    return None


def _noted_number(r: Round, name: str, at: int) -> float | None:
    """Return a number that the round notes of a sampled token; old traces have none."""
    draws: Any = r.notes.get("draws")
    listed = draws.get(name) if isinstance(draws, dict) else None
    note = listed[at] if isinstance(listed, list) and at < len(listed) else None
    return note if isinstance(note, int | float) else None


def find_changes(ids: Sequence[int], others: Sequence[int]) -> list[Change]:
    """Return where two answers differ once as many tokens as possible are aligned, in order; empty
    if they are equal as far as both go.

    The longest common subsequence by bits (Hyyrö 2004): zeros of a row's first j bits count what
    its tokens have in common with the other's first j.
    """
    at = next((i for i, (a, b) in enumerate(zip(ids, others)) if a != b), None)
    if at is None:
        return []
    # 1. Without the common beginning; bit j of a token's places says that b[j] is this token.
    a = ids[at:]
    b = others[at:]
    places: dict[int, int] = {}
    for j, token in enumerate(b):
        places[token] = places.get(token, 0) | 1 << j
    # 2. A row for each prefix of a: its bit j is 0 where b[j] makes what the prefix and b[: j + 1]
    # have in common one token longer. The sum carries a match on to the next 1, for all j at once.
    rows = [(1 << len(b)) - 1]
    for token in a:
        same = rows[-1] & places.get(token, 0)
        rows.append(((rows[-1] + same) | (rows[-1] - same)) & rows[0])

    def shared(i: int, j: int) -> int:
        return j - (rows[i] & ((1 << j) - 1)).bit_count()

    # 3. From the end back to the beginning, along tokens in common wherever that keeps as many as
    # possible; each of them closes the change behind it.
    changes = []
    i, j = stop_i, stop_j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            changes.append((at + i, at + stop_i, at + j, at + stop_j))
            i, j = stop_i, stop_j = i - 1, j - 1
        elif shared(i - 1, j) >= shared(i, j - 1):
            i -= 1
        else:
            j -= 1
    changes.append((at, at + stop_i, at, at + stop_j))
    return [(a, b, c, d) for a, b, c, d in reversed(changes) if a < b or c < d]

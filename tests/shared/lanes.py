"""Lanes made by hand, whose every number can be checked by eye, and those of races that ship."""

from specvl_demo.places import EXAMPLES
from specvl_demo.records import Begin, End, LaneRecords, Record, Round, Token, Tree, fold
from specvl_demo.report.trace import inspect_file


def begin(method: str = "chain", **changes: object) -> Begin:
    fields = {"request": "r1", "lane": method, "method": method, "title": method.title()}
    fields |= {"settings": {}, "lossless": True, "pair": "pocket"}
    fields |= {"models": {"target": "t", "drafter": "d"}, "versions": {"torch": "2.13.0"}}
    fields |= {"sampling": {"temperature": 0.0, "seed": 7}, "max_new_tokens": 64}
    fields |= {"dtype": "float32", "device": "cpu", "prompt": "What is here?"}
    fields |= {"n_prompt": 40, "n_visual": 36, "spans": []}
    fields |= {"vision_s": 0.2, "prefill_s": 0.1, "draft_prefill_s": 0.0}
    return Begin(**fields | changes)


def chain_round(
    index: int,
    clock: float,
    accepted: str,
    drafted: str,
    last: str | None,
    lane: str = "chain",
    **more: object,
) -> Round:
    """Drafted letters, the accepted ones, then the target's `last`; a tenth of a second."""
    tokens = [Token(ord(c), c, "draft") for c in accepted]
    if last is not None:
        tokens.append(Token(ord(last), last, "target"))
    tree = Tree([0, *map(ord, drafted)], list(range(-1, len(drafted))), ["", *drafted])
    seconds = {"draft_s": 0.02, "verify_s": 0.07, "commit_s": 0.006, "other_s": 0.004}
    return Round(
        lane,
        index,
        tokens,
        tree,
        list(range(len(accepted) + 1)),
        **seconds | {"clock_s": clock} | more,
    )


def chain_lane() -> LaneRecords:
    rounds = [chain_round(0, 0.1, "abc", "abcd", "x"), chain_round(1, 0.2, "ef", "ef", "g")]
    return LaneRecords(begin(), rounds, End("chain", "eos", fold(rounds)))


def ar_lane(text: str = "abcxefg") -> LaneRecords:
    rounds = [
        chain_round(i, 0.08 * (i + 1), "", "", letter, "ar", draft_s=0.0)
        for i, letter in enumerate(text)
    ]
    return LaneRecords(begin("ar"), rounds, End("ar", "eos", fold(rounds)))


def recorded(example: str) -> list[LaneRecords]:
    """The lanes of a race that ships."""
    lanes, problems = inspect_file(EXAMPLES / f"{example}.trace.jsonl")
    assert not problems
    return lanes


def flat(*lanes: LaneRecords) -> list[Record]:
    return [record for lane in lanes for record in (lane.begin, *lane.rounds, lane.end) if record]

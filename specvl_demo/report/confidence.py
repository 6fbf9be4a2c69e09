"""How sure the target is of an answer about a picture, from the rounds of its lane.

The words are calibrated, for one target, on held-out questions with known answers
(`lab/confidence.py`, docs/photo.md); for other targets there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from specvl_demo.records import Confidence, LaneRecords, Round

PAIRS = frozenset({"photo"})
"""The pairs whose target was calibrated."""
MAX_TOKENS = 8
"""The longest answer in the calibration."""
WORDS = (
    Confidence("fairly sure", 0.6, 0.875),
    Confidence("unsure", 0.3, 0.479),
    Confidence("guessing", 0.0, 0.353),
)
"""The likeliest word first: `prob` is the least that earns it, `right` the share of held-out
answers that earned it and were right."""
_HELD_OUT = "{right} % of such answers were right on photographs held out of its training."
_FAIRLY_SURE = f"The large model is fairly sure of its answer: {_HELD_OUT}"
SENTENCES = {
    "fairly sure": _FAIRLY_SURE,
    "sure": _FAIRLY_SURE,
    "unsure": f"The large model is unsure of its answer: {_HELD_OUT}",
    "guessing": f"The large model is guessing: {_HELD_OUT}",
}
"""What is said of a word, on the page too; `right` in percent."""


def lowest_probability(rounds: Iterable[Round]) -> float | None:
    """Return the lowest probability that the target assigns to a token with a letter or a digit.

    None if there is no such token, or if one is not among the recorded candidates.
    """
    all_probs = []
    for round_ in rounds:
        for token, listed in zip(round_.tokens, round_.candidates or [[]] * len(round_.tokens)):
            if re.search(r"\w", token.text):
                probs = [likely.prob for likely in listed if likely.id == token.id]
                if not probs:
                    return None
                all_probs += probs
    return min(all_probs, default=None)


def confidence(lane: LaneRecords) -> Confidence | None:
    """Return the confidence in a lane's answer; None unless it is like those that were calibrated:
    greedy, short and complete, about a picture, all of it the target's own.
    """
    begin, rounds, end = lane
    like = (
        begin.pair in PAIRS
        and begin.n_visual
        and not begin.prefix.ids
        and not begin.sampling.get("temperature")
        and begin.sampling.keys() <= {"temperature", "top_p", "seed"}
        and end is not None
        and end.stop == "eos"
        and len(lane.token_ids) <= MAX_TOKENS
    )
    prob = lowest_probability(rounds) if like else None
    if prob is None:
        return None
    word = next(level for level in WORDS if prob >= level.prob)
    return Confidence(word.word, prob, word.right)


def confidence_sentence(lanes: Iterable[LaneRecords]) -> str | None:
    """Return how sure the target is in a race, by the first lane whose end tells."""
    opinions = (lane.end.confidence for lane in lanes if lane.end is not None)
    opinion = next(filter(None, opinions), None)
    if opinion is None:
        return None
    return SENTENCES[opinion.word].format(right=f"{100 * opinion.right:.0f}")

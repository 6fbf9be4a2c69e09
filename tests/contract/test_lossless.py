"""One property: whatever drafts, through whatever views, in whatever shape, an answer that is
verified strictly is the plain model's, token for token, greedy or sampled.

Random parts with random settings, and rows of the method table with their presets, on tiny random
models; tests/unit/test_engine.py does the same over tables, whose distribution is known
exactly.
"""

import random
from collections import Counter
from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import METHODS, PARTS, Choice, Models, build_parts, choose
from specvl_demo.records import Round, validate_trace
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.shared.heads import built
from tests.shared.tiny import ask, ids_of, tiny_prompt

PROMPTS = [tiny_prompt(seed=1), tiny_prompt(2, seed=2), tiny_prompt(0, 12, seed=3)]
HEADS = ("eagle2", "hivis", "dream", "eagle3", "dflash")
DRAFTERS = ("small", "small", "self", "ngram", *HEADS)
CLOSED: dict[str, dict[str, Any]] = {
    "entropy-gate": {"gate": 2.0},
    "visual": {"loose": 0.0, "shift": False},
}
"""Relaxed verifiers, closed: they must then be strict."""
ROWS = [name for name, row in METHODS.items() if row.lossless and row.drafter.name in DRAFTERS]
BLOCKS, DRAWS = 4, 30


@pytest.fixture(scope="module")
def pairs(models: Models) -> list[Models]:
    """The target as it is served, on the library's decoder and in steps of fixed shapes, each with
    every kind of drafter.
    """
    library, fixed = (
        VLMTarget(VLM(models.target.vlm.model, "tiny target", backend=name))
        for name in ("hf", "graphs")
    )
    return [
        Models(
            target,
            {**models.drafters, **{k: built(k, target.decoder) for k in HEADS}},
            models.words,
        )
        for target in (models.target, library, fixed)
    ]


def drawn(rng: random.Random) -> Choice:
    """A row with one of its presets, or parts of every slot, and half of their settings at random
    within small bounds. ValueError where parts do not fit.
    """
    if rng.random() < 0.3:
        name = rng.choice(ROWS)
        return choose(name, preset=rng.choice([None, *METHODS[name].presets.values()]))
    settings: dict[str, Any] = {
        "drafter": rng.choice(DRAFTERS),
        "policy": rng.choice([name for name in PARTS["policy"] if name != "one-node"]),
        "verifier": rng.choice(("strict", "strict", *CLOSED)),
    }
    own_views = settings["drafter"] in ("small", "self")
    views = rng.sample(list(PARTS["views"]), rng.choice((1, 1, 2, 3))) if own_views else []
    settings["views"] = "+".join(views)
    settings |= CLOSED.get(settings["verifier"], {})
    for slot, name in [("policy", settings["policy"]), *(("views", view) for view in views)]:
        for field in fields(PARTS[slot][name].settings):
            low, high, choices = (field.metadata[key] for key in ("low", "high", "choices"))
            if field.name in settings or rng.random() < 0.5:
                continue
            if choices:
                settings[field.name] = rng.choice(list(choices))
            elif isinstance(field.default, bool):
                settings[field.name] = rng.random() < 0.5
            elif isinstance(field.default, int) and low is not None:
                settings[field.name] = rng.randint(int(low), max(int(low), min(int(high), 9)))
            elif isinstance(field.default, float) and low is not None and high is not None:
                settings[field.name] = round(rng.uniform(low, min(high, 1.0)), 2)
    if settings["drafter"] in ("small", "self"):
        settings["draws"] = rng.choice(("argmax", "shared"))
    return choose("custom", settings)


def check_draws(record: Round) -> None:
    """What is noted of a sampled round: probabilities, and the closest rival of every token."""
    draws = record.notes["draws"]
    for p in (*draws["p"], *draws["q"], *draws["overlap"]):
        assert p is None or -1e-6 <= p <= 1 + 1e-6
    for token, gap, rival in zip(record.tokens, draws["gap"], draws["rival"], strict=True):
        assert rival is None or (gap >= 0 and rival != token.id)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_draft_changes_an_answer(block: int, pairs: list[Models]):
    rng = random.Random(block)
    accepted: Counter[str] = Counter()

    def run(question: tuple[int, int, float, int], choice: Choice) -> list[Any]:
        pair, prompt, temperature, seed = question
        sampling = Sampling(temperature, top_p=0.95 if temperature else 1.0, seed=seed)
        request = ask(pairs[pair].target, PROMPTS[prompt], sampling=sampling, max_new_tokens=16)
        return list(race([Lane("l", build_parts(choice, pairs[pair]), SharedPrefill(request))]))

    @cache
    def plain(question: tuple[int, int, float, int]) -> list[int]:
        return ids_of(run(question, choose("ar")))

    ran = 0
    while ran < DRAWS:
        try:
            choice = drawn(rng)
            greedy = choice.verifier.name != "strict" or rng.random() < 0.5
            temperature = 0.0 if greedy else rng.choice((0.7, 1.3))
            question = (rng.randrange(3), rng.randrange(3), temperature, rng.randrange(2))
            records = run(question, choice)
        except ValueError as refusal:  # parts that do not fit
            assert "\n" not in str(refusal)
            continue
        ran += 1
        assert ids_of(records) == plain(question), choice.settings
        validate_trace(records)
        assert records[0].settings == choice.settings
        for record in records:
            if isinstance(record, Round):
                assert not record.n_relaxed, choice.settings
                accepted[choice.drafter.name] += record.n_accepted
                if temperature:
                    check_draws(record)
    assert accepted["small"] > 10, accepted

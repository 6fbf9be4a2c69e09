"""One property: whatever drafts, through whatever views, in whatever shape, an answer that is
verified strictly is the plain model's, token for token, greedy or sampled.

Random parts with random settings, and rows of the method table with their presets, on tiny random
models; tests/unit/test_engine.py does the same over tables, whose distribution is known
exactly. Then what methods note of their rounds, and what a round costs.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specvl_demo.core.engine import Lane
from specvl_demo.core.sampling import Level
from specvl_demo.methods.base import METHODS, PARTS, Choice, Models, build_parts, choose
from specvl_demo.records import Round, gather_lanes, validate_trace
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.shared.heads import built
from tests.shared.samplings import drawn_sampling
from tests.shared.tiny import (
    EOS,
    ask,
    ids_of,
    noisy,
    rounds_of,
    run_lane,
    tiny_llava,
    tiny_prompt,
)

PROMPTS = [tiny_prompt(seed=1), tiny_prompt(2, seed=2), tiny_prompt(0, 12, seed=3)]
"""With a picture, with two, and with none."""
HEADS = ("eagle2", "hivis", "dream", "eagle3", "dflash")
DRAFTERS = ("small", *sorted(PARTS["drafter"].keys() - {"none", "mtp", "assistant"}))
"""All but those whose models the tiny pairs lack, which are tested with their families."""
CLOSED = {
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
    settings = {
        "drafter": rng.choice(DRAFTERS),
        "policy": rng.choice([name for name in PARTS["policy"] if name != "one-node"]),
        "verifier": rng.choice(("strict", "strict", *CLOSED)),
    }
    own_views = settings["drafter"] in ("small", "self")
    views = rng.sample(list(PARTS["views"]), rng.choice((1, 1, 2, 3))) if own_views else []
    settings["views"] = "+".join(views)
    settings |= CLOSED.get(settings["verifier"], {})
    for slot, name in [("policy", settings["policy"]), *(("views", view) for view in views)]:
        for param in PARTS[slot][name].settings.params():
            low, high = param.low, param.high
            if param.name in settings or rng.random() < 0.5:
                continue
            if param.auto and rng.random() < 0.3:
                settings[param.name] = "auto"
            elif param.choices:
                settings[param.name] = rng.choice(list(param.choices))
            elif isinstance(param.default, bool):
                settings[param.name] = rng.random() < 0.5
            elif isinstance(param.default, int) and low is not None:
                settings[param.name] = rng.randint(int(low), max(int(low), min(int(high), 9)))
            elif isinstance(param.default, float) and low is not None and high is not None:
                settings[param.name] = round(rng.uniform(low, min(high, 1.0)), 2)
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


def test_rotations_that_change_while_an_answer_is_written_are_the_librarys():
    """longrope, crossed after 9 tokens, inside a draft: the library's own answer."""
    prompt, factors = PROMPTS[0], {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, **factors}
    rope["original_max_position_embeddings"] = len(prompt) + 9
    model = tiny_llava(rope_parameters=rope)
    plain = model.generate(**prompt.inputs, max_new_tokens=24, do_sample=False)
    expected = plain[0, len(prompt) :].tolist()
    target = VLMTarget(VLM(model, "long"))
    models = Models(target, {"small": VLM(noisy(model, 0.02), "noise")})
    for method in ("chain", "tree"):
        records = run_lane(build_parts(choose(method), models), ask(target, prompt))
        assert ids_of(records) == expected, method
        assert len(rounds_of(records)) < len(expected) - 3


@pytest.mark.parametrize(
    ("policy", "limit"),
    [("best-first", "nodes"), ("static-tree", "tree_nodes"), ("entropy-tree", "max_nodes")],
)
def test_the_size_chosen_for_a_machine_is_recorded_and_changes_no_answer(
    policy: str, limit: str, models: Models, monkeypatch
):
    choice = choose("custom", {"policy": policy, limit: "auto"})
    answers, sizes = [], []
    for costs in ({1: 1.0, 64: 1.0}, {1: 1.0, 8: 1.0, 9: 9.0}, {1: 1.0, 64: 640.0}):
        monkeypatch.setitem(vars(models.target), "row_costs", costs)
        request = ask(models.target, PROMPTS[0], max_new_tokens=12)
        begin, *rest = run_lane(build_parts(choice, models), request)
        assert begin.settings[limit] == "auto" and begin.title.endswith("(auto)")
        sizes.append(begin.chosen[limit])
        assert max(len(round_.tree.tokens) for round_ in rounds_of(rest)) <= sizes[-1]
        answers.append(ids_of(rest))
    assert answers[0] == answers[1] == answers[2]
    assert sizes[0] > sizes[1] > sizes[2] == 2


def answer(records: list[Any]) -> tuple[list[int], str, str]:
    """An answer's tokens, its text, which a stop string may cut, and why it ends."""
    (lane,) = gather_lanes(records)
    return lane.token_ids, lane.text, lane.end.stop


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_draft_changes_an_answer(block: int, pairs: list[Models]):
    rng = random.Random(block)
    accepted = Counter()

    samplings = [drawn_sampling(rng, t, s) for t in (0.0, 0.7, 1.3) for s in (0.0, 0.5)]

    def run(question: tuple[int, int, int], choice: Choice) -> list[Any]:
        pair, prompt, how = question
        sampling = samplings[how]
        request = ask(pairs[pair].target, PROMPTS[prompt], sampling=sampling, max_new_tokens=16)
        return run_lane(build_parts(choice, pairs[pair]), request)

    @cache
    def plain(question: tuple[int, int, int]) -> Any:
        return answer(run(question, choose("ar")))

    ran = 0
    while ran < DRAWS:
        try:
            choice = drawn(rng)
            greedy = choice.verifier.name != "strict" or rng.random() < 0.5
            how = rng.randrange(2) if greedy else rng.randrange(2, len(samplings))
            question = (rng.randrange(3), rng.randrange(3), how)
            records = run(question, choice)
        except ValueError as refusal:  # parts that do not fit
            assert "\n" not in str(refusal)
            continue
        ran += 1
        assert answer(records) == plain(question), (choice.settings, samplings[how])
        validate_trace(records)
        assert records[0].settings == choice.settings
        for round_ in rounds_of(records):
            assert not round_.n_relaxed, choice.settings
            accepted[choice.drafter.name] += round_.n_accepted
            if not samplings[how].greedy:
                check_draws(round_)
    assert accepted["small"] > 10, accepted


class Waits(TorchDispatchMode):
    """Counts numbers that the host reads and choices by a mask, whose number it must know."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        by_mask = name.startswith(("aten::index.", "aten::index_put")) and any(
            arg is not None and arg.dtype == torch.bool for arg in args[1]
        )
        reads = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
        self.n += by_mask or name.startswith(reads)
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts, as waits, whole tensors that are read and choices by a list, which no dispatch shows.

    The class of tensors itself is not changed: torch would then take every tensor for a sequence.
    """

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_list = func is torch.Tensor.__getitem__ and any(
            isinstance(one, list) for one in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        self._waits.n += by_list or func is torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("method", "most"),
    [
        ("ar", 2),
        ("chain", 4),
        ("tabed", 4),
        ("tree", 5),
        ("sage", 5),
        # A tree grown by level reads each level.
        ("eagle2", 9),
        ("hivis", 9),
        ("dream", 9),
    ],
)
def test_a_round_seldom_waits_for_the_device(
    method: str, most: int, pairs: list[Models], monkeypatch
):
    """In half precision, as on a GPU: without a look at near ties."""
    monkeypatch.setattr(VLMTarget, "recomputes", False)
    waits = Waits()
    step, read = Lane.step, Level.read

    def read_at_once(level: Level) -> Any:
        """As from a GPU, in one transfer."""
        before = waits.n
        numbers = read(level)
        waits.n = before + 1
        return numbers

    monkeypatch.setattr(Level, "read", read_at_once)

    def watched(lane: Lane) -> Any:
        with waits, Reads(waits):
            return step(lane)

    monkeypatch.setattr(Lane, "step", watched)
    models = pairs[0]
    parts = build_parts(choose(method), models)
    n_rounds = len(rounds_of(run_lane(parts, ask(models.target, PROMPTS[0]))))
    assert n_rounds >= 2 and n_rounds < waits.n <= most * n_rounds, waits.n / n_rounds


@pytest.mark.parametrize("method", ["tabed", "sage", "specvlm"])
def test_a_record_says_what_each_view_of_the_drafter_saw(method: str, answers: Callable[..., Any]):
    settings = {"views": "multimodal+text-only+caption+pooled"} if method == "tabed" else {}
    begin = answers(method, PROMPTS[1], settings)[1][0]
    seen = {view.view: view for view in begin.seen}
    visual = range(begin.spans[0].start, begin.spans[-1].stop)
    kept = {name: sum(i in visual for i in view.index) for name, view in seen.items()}
    if method == "tabed":
        words = {name: view.words for name, view in seen.items() if view.words}
        # the fixture's token_texts spells ids; 5 is its newline, 6 and 7 stand before a caption
        assert words["text-only"] == "5 "
        assert words["caption"].startswith("6 7 ") and len(words["caption"].split()) > 2
        assert words.keys() == {"text-only", "caption"}
        assert kept == {"multimodal": 18, "text-only": 0, "caption": 0, "pooled": 8}
    else:
        assert kept["pruned"] == {"sage": 3, "specvlm": 1}[method]


@torch.inference_mode()
def test_captions_are_the_drafters_own_greedy_words(models: Any):
    """The library's generate on <prompt up to the picture> <question>, for each picture."""
    from specvl_demo.methods.views import CAPTION_TOKENS, CaptionView

    small, prompt = models.drafter("small"), PROMPTS[0]
    encoded = small.encode(prompt)
    ask = (8, 9, 10)
    stop = prompt.spans[0].stop
    written = CaptionView((), ask, frozenset({EOS}), (3,)).write_caption(encoded, small, stop)
    ids = torch.tensor([[*prompt.ids[:stop].tolist(), *ask]])
    generated = small.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=prompt.inputs["pixel_values"],
        max_new_tokens=CAPTION_TOKENS,
        do_sample=False,
        suppress_tokens=[3],
        pad_token_id=0,
    )[0, ids.shape[1] :].tolist()
    expected = generated[: generated.index(EOS)] if EOS in generated else generated
    assert written == expected and expected

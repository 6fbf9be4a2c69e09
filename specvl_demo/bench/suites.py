"""The suites of `bench` as a table: what each measures, how it is run, how its report reads.

To add a suite: write it in a file of its own and add one row to SUITES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specvl_demo import registry, tuned, verdicts
from specvl_demo.bench import (
    ablations,
    cases,
    data,
    derived,
    device,
    forwards,
    lossless,
    measure,
    pages,
    provenance,
    steps,
    tune,
)
from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import Tell
from specvl_demo.bench.peers import HF_GENERATE, PEERS
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import Choice, Value
from specvl_demo.pairs import Pair
from specvl_demo.registry import Loaded
from specvl_demo.vlm import random_models
from specvl_demo.vlm.encoder import VLM

if TYPE_CHECKING:
    from specvl_demo.decoders.backend import Backend

Report = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a bench was asked for. choices: `ar` first.

    load: brings up the pair with drafters of these roles, in a type where one is named. prompts: how many,
    where a suite can ask any number. busy: figures are wanted even where others use the machine. heads: the
    folder of the ablations suite. sampling: of the lossless suite.
    """

    pair: Pair
    choices: Sequence[Choice]
    repeats: int
    max_new_tokens: int
    prompts: int
    load: device.Load
    tell: Tell
    peers: bool = False
    busy: bool = False
    dtype: str | None = None
    data: str | None = None
    media: Path | None = None
    heads: Path | None = None
    sampling: Sampling = measure.GREEDY
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        return list(dict.fromkeys(c.drafter.role for c in self.choices if c.drafter.role is not None))

    def cases(self, shipped: Callable[[], list[Case]]) -> list[Case]:
        """The person's own questions where some were named, else those that are shipped."""
        if self.data is None:
            return shipped()
        return data.find(self.data, self.prompts, self.media, self.pair.n_frames)


def answers(asked: Asked) -> Report:
    small = ["small"] if asked.peers and "small" in registry.roles_here(asked.pair) else []
    loaded = asked.load(list(dict.fromkeys([*asked.roles, *small])), None)
    peers = list(PEERS) if asked.peers else [HF_GENERATE]
    found = asked.cases(cases.pocket)
    return measure.bench(loaded, found, asked.choices, asked.repeats, asked.max_new_tokens, peers, asked.tell)


def heads_beside(asked: Asked) -> Report:
    if asked.heads is None:
        raise ValueError("--suite ablations needs --heads: a folder with a folder for each trained head.")
    loaded, found = asked.load([], None), asked.cases(cases.pocket)
    return ablations.report(loaded, asked.heads, found, asked.repeats, asked.max_new_tokens, asked.tell)


def single_steps(asked: Asked) -> Report:
    """What a step costs: a pair on disk as it is, hub pairs by shape with random weights, nothing fetched."""
    settings = asked.settings
    if set(settings) - {"context", "graphs"} or not settings.get("context", "1").isdigit():
        raise ValueError("--suite steps takes --set context=TOKENS and --set graphs=true.")
    loaded, target, drafter, names = _decoders(asked, settings.get("graphs") == "true")
    context = int(settings.get("context", 1024))
    report = steps.suite(target, names, drafter, context, repeats=max(2, asked.repeats))
    if loaded is not None:
        report["machine"] |= provenance.describe(loaded)
        report["rows"] += _draft_rows(loaded, asked.choices)
    return report


def _draft_rows(loaded: Loaded, choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Draft steps as rounds run them, views and heads included: one method of each drafter."""
    (request,) = measure.requests(loaded, cases.scenes_alone(1), 64)
    alike = {(one.drafter.name, len(one.views)): one for one in reversed(choices)}
    (ar, *_), rows = (one for one in choices if one.method.name == "ar"), []
    ar_rounds = forwards.run(loaded, ar, request)[1]
    ar_step = sum(one.verify_s for one in ar_rounds) / len(ar_rounds)
    for choice in reversed(alike.values()):
        rounds = forwards.run(loaded, choice, request)[1]
        rows += steps.drafted(choice.method.name, [one.steps for one in rounds], ar_step)
    return rows


def _decoders(asked: Asked, graphs: bool) -> tuple[Loaded | None, Backend, Backend | None, tuple[str, str]]:
    pair, backend, loaded = asked.pair, "static" if graphs else "auto", None
    if pair.local:
        loaded = asked.load(list(registry.roles_here(pair)), None)
        small = loaded.models.drafters.get("small")
        models = [loaded.models.target.vlm.model, *([small.model] if small else [])]
        names = (pair.target.title, small.name if small else "")
    elif pair.id in random_models.PAIRS:
        names, machine = random_models.PAIRS[pair.id], registry.detect()
        dtype = asked.dtype or ("bfloat16" if machine.gpus else "float32")
        needs = verdicts.DTYPE_BYTES[dtype] * sum(map(random_models.n_weights, names)) / 1e9
        there = (machine.gpus[0][1] if machine.gpus else machine.memory_bytes) / 1e9
        if needs > there * verdicts.USABLE_SHARE:
            raise ValueError(f"{names[0]} in {dtype} needs {needs:.0f} GB; there are {there:.0f} GB here.")
        models = [random_models.random_model(name, dtype, machine.device) for name in names]
    else:
        known = ", ".join(("pocket", *random_models.PAIRS))
        raise ValueError(f"The steps suite knows no shapes for {pair.id}; it knows: {known}.")
    decoders = [VLM(model, name, backend=backend).decoder for model, name in zip(models, names, strict=False)]
    return loaded, decoders[0], decoders[1] if len(decoders) > 1 else None, names


def best_settings(asked: Asked) -> Report:
    """Tune, and write what was found where the page and the command line look for it."""
    names = [name for name in tune.tunable(asked.pair) if name in {c.method.name for c in asked.choices}]
    if not names:
        raise ValueError("None of these methods has a tree or a chain to tune.")
    loaded, found = asked.load(asked.roles, None), asked.cases(cases.calibration)
    watch = provenance.Watch()
    rows = tune.tune(loaded, names, found, asked.max_new_tokens, asked.repeats, asked.tell)
    machine = {**provenance.describe(loaded), **watch.read()}
    source = asked.data or "training-side drawn scenes, none of them held out"
    tuned_on = f"Tuned on {len(found)} cases: {source}; other inputs may want other settings."
    about = {"tuned_on": tuned_on, "when": machine["when"], "weights": machine["weights"]}
    kept: dict[str, dict[str, Value]] = {
        row["method"]: {key: row[key] for key in ("settings", "tau", "measured", "standard")} for row in rows
    }
    held = machine["busy"] and not asked.busy
    return {
        "machine": machine,
        "settings": {"pair": asked.pair.id, "cases": [case.name for case in found], "repeats": asked.repeats},
        "tuned_on": tuned_on,
        "written": None if held else str(tuned.write(asked.pair.id, about, kept)),
        "rows": rows,
    }


def lossless_answers(asked: Asked) -> Report:
    found = asked.cases(lambda: cases.mixed(asked.prompts))
    loaded = asked.load(asked.roles, None)
    return lossless.lossless(loaded, found, asked.choices, asked.max_new_tokens, asked.tell, asked.sampling)


def this_device(asked: Asked) -> Report:
    numbers = (asked.repeats, asked.prompts, asked.max_new_tokens)
    return device.report(asked.load, asked.choices, *numbers, asked.tell)


@dataclass(frozen=True)
class Suite:
    """One row of the table. repeats, max_new_tokens, prompts: what is taken where nobody says."""

    run: Callable[[Asked], Report]
    page: Callable[[Report], pages.Page]
    repeats: int = 5
    max_new_tokens: int = 160
    prompts: int = 20


SUITES: dict[str, Suite] = {
    "pocket": Suite(answers, pages.answers),
    "ablations": Suite(heads_beside, pages.ablations, repeats=3),
    "steps": Suite(single_steps, pages.steps, repeats=20),
    "lossless": Suite(lossless_answers, pages.differences, max_new_tokens=64, prompts=200),
    "device": Suite(this_device, pages.device, max_new_tokens=64, prompts=40),
    "ceilings": Suite(lambda asked: derived.report(), pages.ceilings),
    "tune": Suite(best_settings, pages.tuned, repeats=3, max_new_tokens=64),
}


def find(name: str) -> Suite:
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; known: {', '.join(SUITES)}.")
    return SUITES[name]

"""The suites of `bench` as a table: what each measures, how it is run, how its report reads.

Given what was asked for and a way to load the pair, gives a report. To add a suite: write it in a file of its
own and add one row to SUITES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specvl_demo import registry, tuned
from specvl_demo.bench import (
    ablations,
    cases,
    clocks,
    costs,
    data,
    followups,
    lossless,
    measure,
    pages,
    provenance,
    retention,
    scaling,
    serving,
    steps,
    trees,
    tune,
)
from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import Tell
from specvl_demo.bench.peers import HF_GENERATE, RIVALS
from specvl_demo.methods import Choice, Value
from specvl_demo.pairs import Pair
from specvl_demo.registry import Loaded, Machine
from specvl_demo.targets import shapes
from specvl_demo.targets.vlm import VLM

if TYPE_CHECKING:
    from specvl_demo.targets.decoder import Backend

Report = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a bench was asked for. choices: `ar` first. load: brings up the pair with drafters of these roles.

    named: whether methods were named, or all were meant. prompts: how many, where a suite can ask any number.
    busy: figures are wanted even where others use the machine.
    """

    pair: Pair
    choices: Sequence[Choice]
    named: bool
    repeats: int
    max_new_tokens: int
    prompts: int
    load: Callable[[Sequence[str]], Loaded]
    tell: Tell
    peers: bool = False
    busy: bool = False
    dtype: str | None = None
    data: str | None = None
    media: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        """The drafters that the chosen methods need."""
        return list(dict.fromkeys(c.drafter.role for c in self.choices if c.drafter.role is not None))

    def cases(self, shipped: Callable[[], list[Case]]) -> list[Case]:
        """The person's own questions where some were named, else those that are shipped."""
        if self.data is None:
            return shipped()
        return data.find(self.data, self.prompts, self.media, self.pair.n_frames)

    def some(self, standard: Sequence[str], most: int | None = None) -> list[Choice]:
        """The choices that were named, else those of some methods."""
        if self.named:
            return list(self.choices)[:most]
        return [choice for choice in self.choices if choice.method.name in standard][:most]


@dataclass(frozen=True)
class Suite:
    """One row of the table. repeats, max_new_tokens, prompts: what is taken where nobody says."""

    name: str
    help: str
    run: Callable[[Asked], Report]
    page: Callable[[Mapping[str, Any]], pages.Page]
    repeats: int = 5
    max_new_tokens: int = 160
    prompts: int = 20


def _answers(asked: Asked) -> Report:
    rivals = list(RIVALS) if asked.peers else [HF_GENERATE]
    return _beside(asked, asked.choices, rivals)


def _peers(asked: Asked) -> Report:
    return _beside(asked, asked.some(("ar", "ngram", "chain", "tree", "hivis")), list(RIVALS))


def _ablations(asked: Asked) -> Report:
    return _beside(asked, ablations.choices(registry.roles_here(asked.pair)), [HF_GENERATE])


def _beside(asked: Asked, choices: Sequence[Choice], rivals: Sequence[str]) -> Report:
    roles = [c.drafter.role for c in choices if c.drafter.role is not None]
    roles += ["small"] if len(rivals) > 1 and "small" in registry.roles_here(asked.pair) else []
    found = asked.cases(cases.pocket)
    loaded = asked.load(list(dict.fromkeys(roles)))
    return measure.bench(loaded, found, choices, asked.repeats, asked.max_new_tokens, rivals, asked.tell)


def _steps(asked: Asked) -> Report:
    """What a step costs: the shipped pair as it is, hub pairs by shape, random weights, nothing fetched."""
    settings = asked.settings
    if set(settings) - {"context", "graphs"} or not settings.get("context", "1").isdigit():
        raise ValueError("--suite steps takes --set context=TOKENS and --set graphs=true.")
    loaded, target, drafter, names = _decoders(asked, settings.get("graphs") == "true")
    context, repeats = int(settings.get("context", 1024)), max(2, asked.repeats)
    report = steps.suite(target, names, drafter, context, repeats=repeats)
    if loaded is not None:
        report["machine"] |= provenance.describe(loaded)
        report["rows"] += _draft_rows(loaded, asked.choices, repeats)
    return report


def _draft_rows(loaded: Loaded, choices: Sequence[Choice], repeats: int) -> list[dict[str, Any]]:
    """Drafting steps by width as lanes make them, views and heads included: one method of each drafter."""
    (request,) = measure.requests(loaded, cases.scenes_alone(1), 64)
    alike = {(choice.drafter.name, len(choice.views)): choice for choice in reversed(choices)}
    rows = []
    for choice in reversed(alike.values()):
        if choice.drafter.name in costs.NO_MODEL:
            continue
        found = costs.measure(loaded, choice, request, repeats)
        shared = {"model": choice.method.name, "context": len(request.prompt)}
        for step, rows_fed, seconds in (
            ("draft root", costs.LATE + 1, found.root),
            *(("draft", width, seconds) for width, seconds in found.level.items()),
        ):
            told = {"ms": 1e3 * seconds, "vs_step": seconds / found.step}
            rows.append({"step": step, "rows": rows_fed, **shared, **told})
    return rows


def _decoders(asked: Asked, graphs: bool) -> tuple[Loaded | None, Backend, Backend | None, tuple[str, str]]:
    pair, machine = asked.pair, registry.detect()
    backend, loaded = "static" if graphs else "auto", None
    if pair.local:
        loaded = asked.load(list(registry.roles_here(pair)))
        small = loaded.models.drafters.get("small")
        models = [loaded.models.target.vlm.model, *([small.model] if small else [])]
        names = (pair.target.title, small.name if small else "")
    elif pair.id in shapes.PAIRS:
        names = shapes.PAIRS[pair.id]
        dtype = asked.dtype or ("bfloat16" if machine.gpus else "float32")
        _fits(names, machine, dtype)
        models = [shapes.random_model(name, dtype, machine.device) for name in names]
    else:
        known = ", ".join(("pocket", *shapes.PAIRS))
        raise ValueError(f"The steps suite knows no shapes for {pair.id}; it knows: {known}.")
    decoders = [VLM(model, name, backend=backend).decoder for model, name in zip(models, names, strict=False)]
    return loaded, decoders[0], decoders[1] if len(decoders) > 1 else None, names


def _fits(names: tuple[str, str], machine: Machine, dtype: str) -> None:
    """Refuse shapes that the machine cannot hold."""
    needs = registry.DTYPE_BYTES[dtype] * sum(shapes.n_weights(name) for name in names)
    there = machine.gpus[0][1] if machine.gpus else machine.memory_bytes
    if needs > there * registry.USABLE_SHARE:
        raise ValueError(
            f"{names[0]} in {dtype} needs {needs / 1e9:.0f} GB; there are {there / 1e9:.0f} GB here."
        )


def _trees(asked: Asked) -> Report:
    # By what a method is, not by what its preset drafts on this pair.
    chosen = [choice for choice in asked.choices if choice.method.policy == "best-first"]
    if not chosen:
        raise ValueError("The suite trees needs a method that grows its tree best first, as eagle2 does.")
    loaded, found = asked.load(asked.roles), asked.cases(cases.calibration)
    searched = [
        trees.search(loaded, choice.method.name, found, asked.max_new_tokens, asked.tell) for choice in chosen
    ]
    return {
        "machine": provenance.describe(loaded),
        "settings": {"pair": asked.pair.id, "cases": [case.name for case in found]},
        "costs": {one["method"]: one["costs"] for one in searched},
        "rows": [{"method": one["method"], **row} for one in searched for row in one["rows"]],
    }


def _tune(asked: Asked) -> Report:
    """Tune, and write what was found where the page and the command line look for it."""
    names = [name for name in tune.tunable(asked.pair) if name in {c.method.name for c in asked.choices}]
    if not names:
        raise ValueError("None of these methods has a tree or a chain to tune.")
    loaded, found = asked.load(asked.roles), asked.cases(cases.calibration)
    watch = provenance.Watch()
    rows = tune.tune(loaded, names, found, asked.max_new_tokens, asked.repeats, asked.tell)
    machine = {**provenance.describe(loaded), **watch.read()}
    source = asked.data or "training-side drawn scenes, none of them held out"
    tuned_on = f"Tuned on {len(found)} cases: {source}; other inputs may want other settings."
    about = {"tuned_on": tuned_on, "when": machine["when"], "weights": machine["weights"]}
    kept: dict[str, dict[str, Value]] = {
        row["method"]: {key: row[key] for key in ("settings", "tau", "predicted", "measured", "standard")}
        for row in rows
    }
    held = machine["busy"] and not asked.busy
    written = None if held else str(tuned.write(asked.pair.id, about, kept))
    return {
        "machine": machine,
        "settings": {"pair": asked.pair.id, "cases": [case.name for case in found], "repeats": asked.repeats},
        "tuned_on": tuned_on,
        "written": written,
        "rows": rows,
    }


def _scaling(asked: Asked) -> Report:
    loaded = asked.load(list(registry.roles_here(asked.pair)))
    return scaling.scaling(loaded, asked.some(("ar", "chain", "hivis")), asked.repeats, asked.tell)


def _lossless(asked: Asked) -> Report:
    found = asked.cases(lambda: cases.mixed(asked.prompts))
    return lossless.lossless(asked.load(asked.roles), found, asked.choices, asked.max_new_tokens, asked.tell)


def _clocks(asked: Asked) -> Report:
    chosen = asked.some(("ar", "sage", "hivis"), clocks.LANES)
    found = asked.cases(cases.pocket)
    loaded = asked.load(asked.roles)
    return clocks.clocks(loaded, found, chosen, asked.repeats, asked.max_new_tokens, asked.tell)


def _followups(asked: Asked) -> Report:
    chosen = asked.some(("ar", "chain", "tabed", "sage", "eagle2", "hivis", "dream"))
    loaded = asked.load(asked.roles)
    return followups.followups(loaded, chosen, asked.repeats, asked.max_new_tokens, asked.tell)


def _serving(asked: Asked) -> Report:
    names = ",".join(choice.method.name for choice in asked.some(("ar", "tabed", "sage", "hivis")))
    return serving.serving(asked.pair.id, names, asked.max_new_tokens, asked.tell)


def _retention(asked: Asked) -> Report:
    loaded = asked.load(["small"])
    return retention.retention(loaded, asked.prompts, asked.max_new_tokens, asked.tell)


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("pocket", "methods beside each other on held-out scenes", _answers, pages.answers),
        Suite("peers", "beside every way in which Hugging Face decodes", _peers, pages.answers),
        Suite("ablations", "drafters with a part left out", _ablations, pages.answers),
        Suite("steps", "the machine's limits, and what single steps cost", _steps, pages.steps, repeats=20),
        Suite("trees", "every tree shape of a grid, ranked", _trees, pages.shapes, max_new_tokens=96),
        Suite("scaling", "how costs grow, as curves", _scaling, pages.curves),
        Suite(
            *("lossless", "do lossless methods say what plain decoding says", _lossless, pages.differences),
            max_new_tokens=64,
            prompts=200,
        ),
        Suite("clocks", "a lane's clock in a race of three and alone", _clocks, pages.clocked, repeats=3),
        Suite(
            *("followups", "how soon a follow-up is answered", _followups, pages.followed),
            repeats=8,
            max_new_tokens=48,
        ),
        Suite("serving", "start to served page, and its memory", _serving, pages.served, max_new_tokens=64),
        Suite(
            *("retention", "what loose verification keeps right", _retention, pages.kept_right),
            max_new_tokens=96,
            prompts=200,
        ),
        Suite("tune", "the fastest settings here", _tune, pages.tuned, repeats=3, max_new_tokens=64),
    )
}


def find(name: str) -> Suite:
    """The suite of this name; ValueError with the known ones."""
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; known: {', '.join(SUITES)}.")
    return SUITES[name]

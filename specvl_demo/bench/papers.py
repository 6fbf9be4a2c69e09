"""What the papers claim, each beside its control, told by acceptance and nodes, which no clock
moves: `bench --suite papers`.

To add a claim: one row of CLAIMS. Its sentence is decided in `report.papers`, never written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specvl_demo.bench import cases, provenance
from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import BenchOptions, requests
from specvl_demo.core import engine
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import METHODS, Choice, Value, choose, shape
from specvl_demo.records import LaneRecords, gather
from specvl_demo.report import papers
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loader import Loaded

LEAST_LIKE = 0.95
"""# choice: what "hardly loses" means where a paper gives no number: the share that must stay."""


@dataclass(frozen=True)
class Arm:
    """A method with settings, under the name that the tables give it. temperature: of its
    answers."""

    name: str
    method: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    temperature: float = 0.0

    def choice(self) -> Choice:
        chosen = choose(self.method, self.settings, temperature=self.temperature)
        return replace(chosen, method=replace(chosen.method, name=self.name))


@dataclass(frozen=True)
class MustExceed:
    """The arm's figure must be more than so many times the control's."""

    arm: str
    control: str
    least: float = 1.0
    figure: str = "tau"


@dataclass(frozen=True)
class Claim:
    """says: what the paper says and where. method: whose paper it is. lacking: a sentence on
    controls for which no weights are shipped."""

    name: str
    method: str
    paper: str
    says: str
    control: str
    asks: Callable[[BenchOptions], list[Case]]
    arms: tuple[Arm, ...]
    needs: tuple[MustExceed, ...]
    lacking: str = ""


def every_kind(asked: BenchOptions) -> list[Case]:
    return asked.cases("all")[: asked.prompts]


def shifting(asked: BenchOptions) -> list[Case]:
    """What changes from question to question, and drafters of single pictures never saw: five
    pictures at once, two pictures, second turns, text only."""
    found = [one for one in asked.cases("all") if len(one.shown) > 1 or one.before or not one.shown]
    pictures = [one.shown[0] for one in asked.cases("all") if len(one.shown) == 1]
    five = [
        Case(f"five-{at}", "What do the pictures show?", tuple(pictures[at : at + 5]), kind="five")
        for at in range(0, min(20, len(pictures) - 4), 5)
    ]
    return [*five, *found][: asked.prompts]


def clips(asked: BenchOptions) -> list[Case]:
    """Clips of 16 frames, 576 visual tokens on the drawn-scene pair."""
    asks = ("What happens in the clip?", "Describe the clip.")
    return [
        Case(f"clip-{at}", asks[at % 2], (cases.clip(16, at * 3),), kind="clip")
        for at in range(min(8, asked.prompts))
    ]


HALF: dict[str, Value] = {"drop_image": 0.5, "drop_video": 0.5}
PRUNED: dict[str, Value] = {"views": "pruned", **HALF}
SAGE: dict[str, Value] = {**HALF, "max_nodes": 12}
ONLINE: dict[str, Value] = {
    **SAGE,
    **{"growth": "online", "first": "entropy", "min_width": 1, "max_depth": 10, "max_width": 6},
}
STATIC: dict[str, Value] = {**PRUNED, "policy": "static-tree"}
BEST: dict[str, Value] = {**PRUNED, "policy": "best-first", "width": 3, "loops": 7}


def _trees(temperature: float) -> tuple[Arm, ...]:
    """Trees of at most 12 nodes, and fixed ones of 10: entropy trees of at most 12 nodes verify
    about 10."""
    at = f", T = {temperature:g}"
    return (
        Arm(f"SAGE, template{at}", "sage", SAGE, temperature),
        Arm(f"SAGE, online{at}", "sage", ONLINE, temperature),
        *(
            arm
            for nodes in (10, 12)
            for arm in (
                Arm(
                    f"static tree of {nodes}{at}",
                    "custom",
                    STATIC | {"tree_nodes": nodes},
                    temperature,
                ),
                Arm(
                    f"EAGLE-2's tree of {nodes}{at}", "custom", BEST | {"nodes": nodes}, temperature
                ),
            )
        ),
    )


def _relaxed(loose: float) -> tuple[Arm, ...]:
    drawn: dict[str, Value] = {**HALF, "gamma": 10, "loose": loose, "anchors": 5}
    return (
        Arm(f"LVSpec, λ {loose:g}", "lvspec", drawn),
        Arm(f"random, λ {loose:g}", "lvspec", {**drawn, "verifier": "random"}),
    )


def _pruned(drop: float) -> Arm:
    settings: dict[str, Value] = {"drop_image": drop, "drop_video": drop, "tree_nodes": 12}
    return Arm(f"{drop:.0%} left out", "specvlm", settings)


CHAIN_OF_8: dict[str, Value] = {"gamma": 8}
HEAD: dict[str, Value] = {"policy": "best-first", "nodes": 16, "width": 3, "loops": 5}
CLAIMS = (
    Claim(
        "sage",
        "sage",
        "SAGE (arXiv 2602.00523)",
        "A tree shaped by the drafter's entropy is accepted longer than a static tree and than"
        " EAGLE-2's (sections 4 and 6.3).",
        "the same drafter, the same half of the picture, fixed trees of as many nodes as SAGE"
        " verifies on average, and of its bound of 12",
        every_kind,
        (*_trees(0.0), *_trees(1.0)),
        tuple(
            MustExceed(f"SAGE, {growth}, T = {t}", f"{other} of 10, T = {t}")
            for growth, other in (("template", "static tree"), ("online", "EAGLE-2's tree"))
            for t in (0, 1)
        ),
    ),
    Claim(
        "tabed",
        "tabed",
        "TABED (arXiv 2601.20357)",
        "Learnt weights of the views bring over 5 % beside the best single view where the kind of"
        " input shifts (section 1, Table 1).",
        "the picture only, the text only, equal and random weights, chains of 8",
        shifting,
        (
            Arm("learnt weights", "tabed", CHAIN_OF_8),
            Arm("picture only", "chain", CHAIN_OF_8),
            Arm("text only", "custom", {**CHAIN_OF_8, "views": "text-only"}),
            Arm("equal weights", "tabed", {**CHAIN_OF_8, "weights": "uniform"}),
            Arm("random weights", "tabed", {**CHAIN_OF_8, "weights": "random"}),
        ),
        (
            MustExceed("learnt weights", "picture only", 1.05),
            MustExceed("learnt weights", "text only", 1.05),
            MustExceed("learnt weights", "random weights"),
        ),
    ),
    Claim(
        "lvspec",
        "lvspec",
        "LVSpec (arXiv 2604.05650)",
        "Tokens little related to the picture may differ: longer rounds with over 99 % of the"
        " quality, which relaxing by chance does not keep (Figures 6 and 7).",
        "strict verification and random relaxation of the same drafts",
        every_kind,
        (
            Arm("strict", "lvspec", {**HALF, "gamma": 10, "verifier": "strict"}),
            *(arm for loose in (0.2, 0.3, 0.5, 0.7, 0.9) for arm in _relaxed(loose)),
            Arm("FLy", "fly", {"gamma": 10, "window": 4}),
        ),
        (
            MustExceed("LVSpec, λ 0.3", "strict"),
            MustExceed("LVSpec, λ 0.3", "strict", 0.99, "quality"),
            MustExceed("LVSpec, λ 0.3", "random, λ 0.3", 1.0, "quality"),
        ),
    ),
    Claim(
        "hivis",
        "hivis",
        "HiViS (arXiv 2509.23928)",
        "A head from which visual tokens are hidden is accepted longer than EAGLE-2's, which sees"
        " them (Table 1).",
        "an EAGLE-2 head and the same trees of 16, over clips of 576 visual tokens",
        clips,
        (Arm("HiViS", "hivis", HEAD), Arm("EAGLE-2", "eagle2", HEAD)),
        (MustExceed("HiViS", "EAGLE-2"),),
        "An EAGLE-2 head that fed itself in training as HiViS does is not shipped, so what hiding"
        " brings cannot be told from what self-feeding brings.",
    ),
    Claim(
        "dream",
        "dream",
        "DREAM (arXiv 2505.19201)",
        "Cross-attention to the target's features is accepted longer than EAGLE-2, also with a"
        " quarter of the visual tokens left out (Table 1, section 3.3).",
        "an EAGLE-2 head and the same trees of 16; all visual tokens",
        every_kind,
        (
            *(Arm(f"DREAM, keeps {k:g}", "dream", {**HEAD, "keep": k}) for k in (1.0, 0.75, 0.25)),
            Arm("EAGLE-2", "eagle2", HEAD),
        ),
        (
            MustExceed("DREAM, keeps 0.75", "EAGLE-2"),
            MustExceed("DREAM, keeps 0.75", "DREAM, keeps 1", LEAST_LIKE),
        ),
        "Heads with one fixed layer at 25, 50 and 75 % of the depth are not shipped.",
    ),
    Claim(
        "pruning",
        "specvlm",
        "SpecVLM (arXiv 2508.16201)",
        "With 90 % of a clip's tokens left out the drafter is accepted hardly less.",
        "nothing left out; guided pruning, static trees of 12",
        clips,
        tuple(map(_pruned, (0.0, 0.5, 0.8, 0.9, 0.95))),
        (MustExceed("90% left out", "0% left out", LEAST_LIKE),),
    ),
)


def find(name: str | None) -> Sequence[Claim]:
    """The claim of this name, all without one. ValueError with the known ones."""
    found = [one for one in CLAIMS if name in (None, one.name)]
    if not found:
        raise ValueError(f"There is no claim {name!r}; known: {', '.join(c.name for c in CLAIMS)}.")
    return found


def report(asked: BenchOptions) -> dict[str, Any]:
    """`machine, settings, rows, claims`: a row an arm, a claim with what it needs. ValueError for
    an unknown claim or a pair that lacks a drafter."""
    wanted = find(asked.claim)
    choices = [arm.choice() for claim in wanted for arm in claim.arms]
    loaded = asked.load(choosing.roles_of(choices), None)
    rows: list[dict[str, Any]] = []
    claims = []
    for at, claim in enumerate(wanted):
        answered, more = _answered(loaded, claim, asked, at / len(wanted))
        rows += more
        claims.append(_claim(claim, answered))
    settings = {
        "pair": loaded.pair.id,
        "claim": asked.claim,
        "prompts": asked.prompts,
        "max_new_tokens": asked.max_new_tokens,
        "seed": asked.sampling.seed,
    }
    machine = provenance.describe(loaded)
    return {"machine": machine, "settings": settings, "rows": rows, "claims": claims}


Answered = Mapping[str, Sequence[papers.Sums]]


def _answered(
    loaded: Loaded, claim: Claim, asked: BenchOptions, done: float
) -> tuple[Answered, list[dict[str, Any]]]:
    """What every arm's answers add up to, and a row for each."""
    found, answered, rows = claim.asks(asked), {}, []
    cost = _cost(claim)
    for arm in claim.arms:
        asked.tell(f"{claim.name}: {arm.name}", done)
        sampling = Sampling(arm.temperature, seed=asked.sampling.seed)
        choice, lanes = arm.choice(), list[LaneRecords]()
        for request in requests(loaded, found, asked.max_new_tokens, sampling):
            lanes += gather(engine.race(session.lanes(loaded, request, [choice])))
        answered[arm.name] = [
            papers.sums(lane, cost[0] if cost else None, case.reference)
            for lane, case in zip(lanes, found, strict=True)
        ]
        rows.append(
            {
                "claim": claim.name,
                "method": arm.name,
                "drafts": shape(choice.settings),
                "questions": len(found),
                **papers.pooled(answered[arm.name]),
                "alpha_lag_1": papers.lagged(lanes, "alpha"),
                "alpha_and_kept": papers.foretold(lanes, "alpha"),
            }
        )
    return answered, rows


def _cost(claim: Claim) -> tuple[float, str] | None:
    learn = METHODS[claim.method].learn
    return learn.draft_cost if learn is not None else None


def _claim(claim: Claim, answered: Answered) -> dict[str, Any]:
    compared = []
    for one in claim.needs:
        found = papers.ratio(answered[one.arm], answered[one.control], one.figure)
        value, interval = found or (None, None)
        compared.append({**vars(one), "ratio": value, "interval": interval})
    told = ("name", "method", "paper", "says", "control", "lacking")
    return {
        **{key: getattr(claim, key) for key in told},
        "draft_cost": _cost(claim),
        "comparisons": compared,
    }

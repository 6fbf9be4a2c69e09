"""The papers' claims as data: arms, controls, questions, and what a claim needs to hold. To add
one: a row of CLAIMS; `verdicts` decides its sentence.

The shipped record (`notes/papers.json`) also has controls whose settings are no longer there:
random relaxation, random weights, hidden pictures, shut gates, and heads that are not shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from PIL import Image

from lab.options import LabOptions, every
from specvl_demo.compare import questions
from specvl_demo.media import VideoFrames
from specvl_demo.methods.base import Choice, Value, choose
from specvl_demo.pairs import find as find_pair
from specvl_demo.question import Question

Asks = Callable[[LabOptions], list[Question]]
"""The questions of a claim or an arm, from the bench's options."""

LEAST_LIKE = 0.95
"""# choice: the meaning of "hardly loses" without a number: the share that must remain."""
LONG = 25
"""# choice: tokens above which an answer counts as long; the questions divide about equally."""
SIDE = 256
"""Pixels of a clip's frames: those of one clip have one size, whatever the pictures had."""


@dataclass(frozen=True)
class Arm:
    """A method with settings, under its name in the tables. asks: In place of its claim's
    questions.
    """

    name: str
    method: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    temperature: float = 0.0
    asks: Asks | None = None

    def choice(self) -> Choice:
        chosen = choose(self.method, self.settings, temperature=self.temperature)
        return replace(chosen, method=replace(chosen.method, name=self.name))


@dataclass(frozen=True)
class Margin:
    """The arm's figure must be more than `least` times the control's. beside: decides nothing."""

    arm: str
    control: str
    least: float = 1.0
    figure: str = "tau"
    beside: bool = False


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, on its method.

    lacking: A sentence on controls that are not shipped. parts: By which τ is reported: the part of
    an answer of so many tokens.
    """

    name: str
    method: str
    paper: str
    says: str
    control: str
    asks: Asks
    arms: tuple[Arm, ...]
    needs: tuple[Margin, ...]
    lacking: str = ""
    parts: Callable[[Question, int], str] | None = None


def every_kind(options: LabOptions) -> list[Question]:
    return options.every()[: options.prompts]


def shifting(options: LabOptions) -> list[Question]:
    """Return questions that no drafter was trained on: several pictures, second turns, text."""
    every = options.every()
    found = [one for one in every if len(one.media) > 1 or one.earlier or not one.media]
    pictures = [one.media[0] for one in every if len(one.media) == 1]
    five = [
        Question(
            "What do the pictures show?", tuple(pictures[at : at + 5]), id=f"five-{at}", kind="five"
        )
        for at in range(0, min(20, len(pictures) - 4), 5)
    ]
    return [*five, *found][: options.prompts]


def clips(options: LabOptions, frames: int = 16) -> list[Question]:
    """Return clips of unrelated pictures: drawn scenes for the pair that knows them, or its own."""
    asks = ("What happens in the clip?", "Describe the clip.")
    drawn = options.pair.questions == questions.POCKET
    shown = (one for case in (scenes() if drawn else options.every()) for one in case.media)
    pictures = [one for one in shown if isinstance(one, Image.Image)]
    if not drawn:
        pictures = [picture.resize((SIDE, SIDE)) for picture in pictures]

    def clip(first: int) -> VideoFrames:
        return VideoFrames(tuple(pictures[(first + i) % len(pictures)] for i in range(frames)))

    return [
        Question(asks[at % 2], (clip(3 * at),), id=f"clip-{at}", kind="clip")
        for at in range(min(8, options.prompts))
    ]


def scenes() -> list[Question]:
    """Return the drawn scenes that the pocket pair is asked to describe."""
    return questions.group_by_kind(every(find_pair("pocket")))["describe"]


def length(case: Question, tokens: int) -> str:
    return f"answers over {LONG} tokens" if tokens > LONG else f"up to {LONG}"


def kind(case: Question, tokens: int) -> str:
    return case.kind


HALF: dict[str, Value] = {"drop_image": 0.5, "drop_video": 0.5}
PRUNED: dict[str, Value] = {"views": "pruned", **HALF}
SAGE: dict[str, Value] = {**HALF, "max_nodes": 12}
ONLINE: dict[str, Value] = {
    **SAGE,
    **{"growth": "online", "min_width": 1, "max_depth": 10, "max_width": 6},
}
STATIC: dict[str, Value] = {**PRUNED, "policy": "static-tree"}
BEST: dict[str, Value] = {**PRUNED, "policy": "best-first", "width": 3, "loops": 7}
LOOSE: dict[str, Value] = {**HALF, "gamma": 10, "anchors": 5}
CHAIN_OF_8: dict[str, Value] = {"gamma": 8}
CHAIN_OF_10: dict[str, Value] = {**PRUNED, "gamma": 10}
HEAD: dict[str, Value] = {"policy": "best-first", "nodes": 16, "width": 3, "loops": 5}
FRAMES = (1, 4, 16, 64)
"""Of the clips in the questions to HiViS and EAGLE-2."""


def _trees(temperature: float) -> tuple[Arm, ...]:
    """Return trees of at most 12 nodes, and fixed ones of 10: of 12, about 10 are verified."""
    at = f", T = {temperature:g}"
    arms = [
        Arm(f"SAGE, template{at}", "sage", SAGE, temperature),
        Arm(f"SAGE, online{at}", "sage", ONLINE, temperature),
    ]
    for nodes in (10, 12):
        static, best = STATIC | {"tree_nodes": nodes}, BEST | {"nodes": nodes}
        arms.append(Arm(f"static tree of {nodes}{at}", "custom", static, temperature))
        arms.append(Arm(f"EAGLE-2's tree of {nodes}{at}", "custom", best, temperature))
    return tuple(arms)


def _pruned(drop: float) -> Arm:
    settings: dict[str, Value] = {"drop_image": drop, "drop_video": drop, "tree_nodes": 12}
    return Arm(f"{drop:.0%} left out", "specvlm", settings)


def _seen(frames: int) -> tuple[Arm, ...]:
    """Return heads that see a clip of so many frames, or do not."""
    asks, of = partial(clips, frames=frames), f", {frames} frame{'s' if frames > 1 else ''}"
    return (
        Arm(f"HiViS{of}", "hivis", HEAD, asks=asks),
        Arm(f"EAGLE-2{of}", "eagle2", HEAD, asks=asks),
    )


CLAIMS = (
    Claim(
        "sage",
        "sage",
        "SAGE (arXiv 2602.00523)",
        "A tree shaped by the drafter's entropy gets more of its tokens accepted than a static tree"
        " or EAGLE-2's (sections 4 and 6.3).",
        "the same drafter, the same half of the picture, fixed trees of as many nodes as SAGE"
        " verifies on average, and of its bound of 12",
        every_kind,
        (*_trees(0.0), *_trees(1.0)),
        tuple(
            Margin(f"SAGE, {growth}, T = {t}", f"{other} of 10, T = {t}")
            for growth, other in (("template", "static tree"), ("online", "EAGLE-2's tree"))
            for t in (0, 1)
        ),
        parts=length,
    ),
    Claim(
        "tabed",
        "tabed",
        "TABED (arXiv 2601.20357)",
        "Learnt weights of the views bring over 5 % beside the best single view where the kind of"
        " input shifts (section 1, Table 1).",
        "the picture only, the text only, equal weights, chains of 8",
        shifting,
        (
            Arm("learnt weights", "tabed", CHAIN_OF_8),
            Arm("picture only", "chain", CHAIN_OF_8),
            Arm("text only", "custom", {**CHAIN_OF_8, "views": "text-only"}),
            Arm("equal weights", "tabed", {**CHAIN_OF_8, "weights": "uniform"}),
        ),
        (
            Margin("learnt weights", "picture only", 1.05),
            Margin("learnt weights", "text only", 1.05),
            Margin("learnt weights", "equal weights", beside=True),
        ),
        parts=kind,
    ),
    Claim(
        "lvspec",
        "lvspec",
        "LVSpec (arXiv 2604.05650)",
        "Tokens little related to the picture may differ: longer rounds with over 99 % of the"
        " quality, which relaxing by chance does not keep (Figures 6 and 7).",
        "strict verification and FLy's gate of the same drafts",
        every_kind,
        (
            Arm("strict", "lvspec", {**HALF, "gamma": 10, "verifier": "strict"}),
            *(
                Arm(f"LVSpec, λ {loose:g}", "lvspec", {**LOOSE, "loose": loose})
                for loose in (0.2, 0.3, 0.5, 0.7, 0.9)
            ),
            *(
                Arm(f"LVSpec, λ 0.3, N {n}", "lvspec", {**LOOSE, "loose": 0.3, "anchors": n})
                for n in (1, 10, 100)
            ),
            Arm("LVSpec, λ 0.3, no shift", "lvspec", {**LOOSE, "loose": 0.3, "shift": False}),
            Arm("FLy", "custom", {**CHAIN_OF_10, "verifier": "entropy-gate", "window": 4}),
        ),
        (
            Margin("LVSpec, λ 0.3", "strict"),
            Margin("LVSpec, λ 0.3", "strict", 0.99, "quality"),
            Margin("LVSpec, λ 0.3", "FLy", 1.0, "quality", beside=True),
        ),
    ),
    Claim(
        "hivis",
        "hivis",
        "HiViS (arXiv 2509.23928)",
        "A head from which visual tokens are hidden gets more of its tokens accepted than"
        " EAGLE-2's, which sees them (Table 1).",
        "an EAGLE-2 head and the same trees of 16, over clips of 1 to 64 frames",
        clips,
        tuple(arm for frames in FRAMES for arm in _seen(frames)),
        (
            Margin("HiViS, 16 frames", "EAGLE-2, 16 frames"),
            *(
                Margin(f"HiViS, {frames}", f"EAGLE-2, {frames}", beside=True)
                for frames in ("1 frame", "64 frames")
            ),
        ),
    ),
    Claim(
        "dream",
        "dream",
        "DREAM (arXiv 2505.19201)",
        "A head with cross-attention to the target's features gets more of its tokens accepted than"
        " EAGLE-2's, also with a quarter of the visual tokens left out, and a layer chosen by"
        " entropy teaches better than a fixed one (Table 1, section 3.3, Figure 4a).",
        "an EAGLE-2 head and the same trees of 16; all visual tokens",
        every_kind,
        (
            *(
                Arm(f"DREAM, keeps {k:g}", "dream", {**HEAD, "keep": k})
                for k in (1.0, 0.75, 0.5, 0.25)
            ),
            Arm("EAGLE-2", "eagle2", HEAD),
        ),
        (
            Margin("DREAM, keeps 0.75", "EAGLE-2"),
            Margin("DREAM, keeps 0.75", "DREAM, keeps 1", LEAST_LIKE),
        ),
    ),
    Claim(
        "pruning",
        "specvlm",
        "SpecVLM (arXiv 2508.16201)",
        "With 90 % of a clip's tokens left out, nearly as many tokens are accepted.",
        "nothing left out; guided pruning, static trees of 12, clips of 16 frames",
        clips,
        tuple(map(_pruned, (0.0, 0.25, 0.5, 0.8, 0.9, 0.95))),
        (Margin("90% left out", "0% left out", LEAST_LIKE),),
    ),
)


def find(name: str | None) -> Sequence[Claim]:
    """The claim of this name, all without one. ValueError with the known ones."""
    found = [one for one in CLAIMS if name in (None, one.name)]
    if not found:
        raise ValueError(f"There is no claim {name!r}; known: {', '.join(c.name for c in CLAIMS)}.")
    return found

"""How costs grow: with the prompt, the picture, frames, the answer, nodes; and what HiViS reads of a prompt.

Given a loaded pair, gives curves: measured points with the slope that theory expects, from the bytes and
operations of a step and what the machine was seen to do. Clips of any length are made of drawn frames,
answers of any length by ignoring the end of sequence, since a step costs the same whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from PIL import Image

from specvl_demo import registry, session
from specvl_demo.bench import provenance, steps
from specvl_demo.bench.cases import clip
from specvl_demo.bench.drawing import line
from specvl_demo.bench.measure import Tell, silent
from specvl_demo.bench.steps import Bounds
from specvl_demo.core import engine
from specvl_demo.core.engine import Request
from specvl_demo.methods import Choice
from specvl_demo.registry import Loaded
from specvl_demo.report.metrics import Lane, gather
from specvl_demo.targets.prompts import Film, Turn
from specvl_demo.training.evaluate import held_out

LENGTHS = (64, 128, 256, 512, 1024, 1536)
NODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
SIDES = (96, 192, 384, 768, 1152)
FRAMES = (1, 2, 4, 8, 12, 16)
ANSWERS = (16, 32, 64, 128, 256)
COLUMNS = ("x", "y", "expected")


@dataclass(frozen=True)
class Curve:
    """One curve. each: one step along x, in words. slope: expected by theory, in units of y a unit of x; None
    where theory says no more than a straight line. why: what it is expected from.
    """

    name: str
    title: str
    x: str
    each: str
    y: str
    points: tuple[tuple[float, float], ...]
    slope: float | None
    why: str
    method: str = ""

    def told(self) -> dict[str, Any]:
        """As plain data, with the line nearest to the points."""
        found, start, straight = line(self.points)
        row = {**vars(self), "points": [list(point) for point in self.points]}
        return row | {"measured_slope": found, "intercept": start, "r2": straight}


class Endless:
    """A target that knows no end of sequence, so that an answer is as long as asked."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.vocabulary = replace(target.vocabulary, eos=frozenset())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def scaling(
    loaded: Loaded, choices: Sequence[Choice], repeats: int = 5, tell: Tell = silent
) -> dict[str, Any]:
    """`machine, settings, rows`: a row is a curve."""
    watch = provenance.Watch()
    decoder = loaded.models.target.decoder
    limits = steps.bounds(decoder.device, decoder.dtype)
    makers: list[Callable[[], Iterator[Curve]]] = [
        lambda: _prompt(loaded, limits, LENGTHS, repeats),
        lambda: _nodes(loaded, limits, NODES, repeats),
        lambda: _sides(loaded, SIDES, repeats),
        lambda: _frames(loaded, limits, FRAMES, repeats),
        lambda: _answers(loaded, choices, ANSWERS, repeats),
        lambda: _hidden(loaded, FRAMES, repeats),
    ]
    curves: list[Curve] = []
    for number, make in enumerate(makers):
        tell(f"curve {number + 1} of {len(makers)}", number / len(makers))
        curves += make()
    return {
        "machine": {**provenance.describe(loaded), **vars(limits), **watch.read()},
        "settings": {"pair": loaded.pair.id, "repeats": repeats},
        "rows": [curve.told() for curve in curves],
    }


def _prompt(loaded: Loaded, limits: Bounds, lengths: Sequence[int], repeats: int) -> Iterator[Curve]:
    """Prefill and a plain step against the tokens before it."""
    decoder, name = loaded.models.target.decoder, loaded.pair.target.title
    context = loaded.prompter.context
    lengths = [n for n in lengths if n < context]
    filled = [steps.prefill_cost(decoder, name, limits, n, repeats) for n in lengths]
    yield Curve(
        "prefill",
        "Prefill against prompt length",
        "tokens of the prompt",
        "token of the prompt",
        "ms",
        tuple((cost.rows, cost.ms) for cost in filled),
        2e3 * decoder.n_weights / limits.flops_per_s,
        "two operations a weight and token, at the measured rate of products; attention adds a square",
    )
    stepped = [steps.costs(decoder, name, limits, n, (1,), 4 * repeats)[0] for n in lengths]
    yield Curve(
        "step",
        "A plain step against what stands before it",
        "tokens in the cache",
        "token in the cache",
        "ms",
        tuple((cost.context, cost.ms) for cost in stepped),
        1e3 * decoder.n_cached * decoder.dtype.itemsize / limits.bytes_per_s,
        "the keys and values of one token more, read at the measured rate",
    )


def _nodes(loaded: Loaded, limits: Bounds, nodes: Sequence[int], repeats: int) -> Iterator[Curve]:
    """Verification against the tree's size."""
    decoder = loaded.models.target.decoder
    found = steps.costs(decoder, loaded.pair.target.title, limits, 256, nodes, 4 * repeats)
    yield Curve(
        "verify",
        "Verification against nodes",
        "nodes of the tree, root included",
        "node",
        "ms",
        tuple((cost.rows, cost.ms) for cost in found),
        2e3 * decoder.n_weights / limits.flops_per_s,
        "two operations a weight and node, at the measured rate of products",
    )


def _sides(loaded: Loaded, sides: Sequence[int], repeats: int) -> Iterator[Curve]:
    """From a picture of any size to the target's first step."""
    picture = held_out("describe", 0)[1][0]
    points = []
    for side in sides:
        asked = _asked(loaded, (picture.resize((side, side), Image.Resampling.BICUBIC),), 1)
        lanes = _lanes(loaded, asked, registry.choose(loaded.pair, "ar"), repeats)
        before = median(lane.begin.vision_s + lane.begin.prefill_s for lane in lanes)
        points.append((side * side / 1e3, 1e3 * before))
        tokens = lanes[0].begin.n_visual
    fixed = loaded.pair.target.shipped
    yield Curve(
        "picture",
        "Vision and prefill against picture size",
        "thousand pixels",
        "thousand pixels",
        "ms",
        tuple(points),
        0.0 if fixed else None,
        f"every picture becomes {tokens} tokens here, whatever its size"
        if fixed
        else "tokens grow with the pixels, up to the model's limit",
    )


def _frames(loaded: Loaded, limits: Bounds, frames: Sequence[int], repeats: int) -> Iterator[Curve]:
    """Vision and prefill of a clip against its frames."""
    vision, prefill, per_frame = [], [], 0.0
    for n in frames:
        asked = _asked(loaded, (clip(n),), 1)
        lanes = _lanes(loaded, asked, registry.choose(loaded.pair, "ar"), repeats)
        vision.append((n, 1e3 * median(lane.begin.vision_s for lane in lanes)))
        prefill.append((n, 1e3 * median(lane.begin.prefill_s for lane in lanes)))
        per_frame = lanes[0].begin.n_visual / n
    yield Curve(
        "vision",
        "Vision against frames",
        "frames",
        "frame",
        "ms",
        tuple(vision),
        None,
        "every frame is seen alone: a straight line",
    )
    decoder = loaded.models.target.decoder
    yield Curve(
        "frames",
        "Prefill against frames",
        "frames",
        "frame",
        "ms",
        tuple(prefill),
        per_frame * 2e3 * decoder.n_weights / limits.flops_per_s,
        f"{per_frame:.0f} tokens a frame, two operations a weight and token",
    )


def _answers(
    loaded: Loaded, choices: Sequence[Choice], lengths: Sequence[int], repeats: int
) -> Iterator[Curve]:
    """Decoding against the answer's length, for every method that was asked for."""
    picture = held_out("describe", 2)[1][0]
    for choice in choices:
        points = []
        for n in lengths:
            asked = _asked(loaded, (picture,), n)
            endless = replace(asked, target=Endless(asked.target))
            lanes = _lanes(loaded, endless, choice, max(2, repeats // 2))
            points.append((n, 1e3 * median(lane.rounds[-1].clock_s for lane in lanes)))
        yield Curve(
            f"answer-{choice.method.name}",
            f"{choice.method.title}: decoding against the answer's length",
            "tokens of the answer",
            "token of the answer",
            "ms",
            tuple(points),
            points[0][1] / points[0][0],
            "what the first tokens cost each; behind the answer's true end drafts get worse",
            choice.method.name,
        )


def _hidden(loaded: Loaded, frames: Sequence[int], repeats: int) -> Iterator[Curve]:
    """What HiViS's drafter reads of the prompt, and what that costs, beside EAGLE-2's, as pictures grow."""
    roles = [role for role in ("hivis", "eagle2") if role in loaded.models.drafters]
    for role in roles:
        shares, costs = [], []
        for n in frames:
            asked = _asked(loaded, (clip(n),), 1)
            lanes = _lanes(loaded, asked, registry.choose(loaded.pair, role), repeats)
            begin = lanes[0].begin
            shares.append((begin.n_visual, sum(seen.n for seen in begin.seen) / begin.n_prompt))
            costs.append((begin.n_visual, 1e3 * median(lane.begin.draft_prefill_s for lane in lanes)))
        hidden = role == "hivis"
        yield Curve(
            f"read-{role}",
            f"{role}: share of the prompt that its drafter reads",
            "visual tokens",
            "visual token",
            "share",
            tuple(shares),
            None,
            "text over all tokens: falls as pictures grow" if hidden else "text and picture: all of it",
            role,
        )
        yield Curve(
            f"prefill-{role}",
            f"{role}: its drafter's prefill",
            "visual tokens",
            "visual token",
            "ms",
            tuple(costs),
            0.0 if hidden else None,
            "no visual row is read: it costs the same" if hidden else "every visual row is read: it grows",
            role,
        )


def _asked(loaded: Loaded, shown: Sequence[Image.Image | Film], most: int) -> Request:
    turn = Turn("Describe what you see.", tuple(shown))
    return session.request(loaded, [turn], most, detail="light")


def _lanes(loaded: Loaded, asked: Request, choice: Choice, repeats: int) -> list[Lane]:
    """The same request answered again and again, after one that nobody counts."""
    found = []
    for _ in range(repeats + 1):
        found += gather(engine.race(session.lanes(loaded, asked, [choice])))
    return found[1:]

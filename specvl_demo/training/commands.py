"""`train …`: one function a recipe, its options, and what it writes where.

Given the words after `train`; gives the exit code. Imports a recipe's module only when it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from specvl_demo.cli.parse import Parser
from specvl_demo.machine import cores

ASSETS = Path(__file__).parents[2] / "assets" / "pocket"


def _parser(what: str, about: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"python -m specvl_demo train {what}", description=about, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=cores(), help="CPU threads (default: all)")
    return parser


def _run_parser(what: str, about: str, recipe: type) -> argparse.ArgumentParser:
    """The options of a recipe that draws its own pictures: its fields, and how to run it."""
    parser = _parser(what, about)
    parser.add_argument("--folder", type=Path, default=Path("runs") / what, help="checkpoints")
    parser.add_argument("--workers", type=int, default=1, help="processes that draw pictures")
    parser.add_argument("--fresh", action="store_true", help="do not go on from the checkpoint")
    for f in fields(recipe):
        parser.add_argument("--" + f.name.replace("_", "-"), type=type(f.default), default=f.default)
    return parser


def pocket(argv: Sequence[str]) -> int:
    """Train the pocket target from drawn pictures; a stopped run goes on where it was."""
    from specvl_demo.training.train_pocket import Recipe, main

    parser = _run_parser("pocket", pocket.__doc__, Recipe)
    parser.add_argument("--out", type=Path, default=ASSETS / "target", help="the finished model")
    parser.add_argument("--start", type=Path, help="folder of a finished model to begin with")
    parser.add_argument("--no-compile", action="store_true", help="where no C++ compiler is at hand")
    o = parser.parse_args(argv)
    _threads(o.threads)
    recipe = Recipe(**{f.name: getattr(o, f.name) for f in fields(Recipe)})
    resume, compiled = not o.fresh, not o.no_compile
    main(o.folder, o.out, recipe, resume=resume, workers=o.workers, compiled=compiled, start=o.start)
    return 0


def tower(argv: Sequence[str]) -> int:
    """Train the target's vision tower on more hands than one; its language model stays as it is."""
    from specvl_demo.training.train_tower import Recipe, main

    parser = _run_parser("tower", tower.__doc__, Recipe)
    parser.add_argument("--start", type=Path, default=ASSETS / "target", help="the target to begin with")
    parser.add_argument("--out", type=Path, default=Path("runs/target"), help="the finished target")
    o = parser.parse_args(argv)
    _threads(o.threads)
    recipe = Recipe(**{f.name: getattr(o, f.name) for f in fields(Recipe)})
    main(o.start, o.folder, o.out, recipe, resume=not o.fresh, workers=o.workers)
    return 0


def answers(argv: Sequence[str]) -> int:
    """Write conversations in the target's own words: what every drafter of the pair is trained on."""
    from specvl_demo.training.answers import regenerate

    parser = _parser("answers", answers.__doc__)
    parser.add_argument("--target", type=Path, default=ASSETS / "target")
    parser.add_argument("--out", type=Path, default=Path("runs/answers.jsonl"))
    parser.add_argument("--n", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=7)
    o = parser.parse_args(argv)
    _threads(o.threads)
    regenerate(o.target, o.out, o.n, o.seed)
    return 0


def drafter(argv: Sequence[str]) -> int:
    """Distil the small-VLM drafter from the target on the target's own answers."""
    from specvl_demo.training import train_drafter
    from specvl_demo.training.answers import regenerate

    parser = _parser("drafter", drafter.__doc__)
    parser.add_argument("--target", type=Path, default=ASSETS / "target")
    parser.add_argument("--out", type=Path, default=ASSETS / "drafter")
    parser.add_argument("--folder", type=Path, default=Path("runs/drafter"), help="checkpoints")
    parser.add_argument("--answers", type=Path, default=Path("runs/answers.jsonl"), help="made when missing")
    parser.add_argument("--conversations", type=int, default=6000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="do not go on from the checkpoint")
    o = parser.parse_args(argv)
    _threads(o.threads)
    options = {"layers": o.layers, "steps": o.steps, "batch": o.batch, "seed": o.seed, "fresh": o.fresh}
    regenerate(o.target, o.answers, o.conversations, seed=7)
    train_drafter.main(o.target, o.answers, o.folder, o.out, **options)
    return 0


def head(method: str) -> Callable[[Sequence[str]], int]:
    """The command that trains a head of this method."""

    def command(argv: Sequence[str]) -> int:
        from specvl_demo import pairs, registry
        from specvl_demo.training import train_pair
        from specvl_demo.training.learners import RECIPES as HEADS

        about = f"Train the {method} head of a pair on its target's own answers."
        parser = _parser(method, f"{about} RUNS is runs for the pocket pair, runs/PAIR for others.")
        parser.add_argument("--pair", default="pocket", help="whose target (default: pocket)")
        parser.add_argument(
            "--out",
            type=Path,
            help="the finished head (default: in assets; of other pairs: RUNS/head-METHOD)",
        )
        parser.add_argument("--folder", type=Path, help="checkpoints (default: RUNS/METHOD)")
        parser.add_argument("--work", type=Path, help="answers and features (default: RUNS/features)")
        parser.add_argument("--answers", type=Path, help="made when missing (default: RUNS/answers.jsonl)")
        parser.add_argument("--prompts", type=Path, help="questions, for targets other than the pocket one")
        parser.add_argument("--conversations", type=int, default=6000)
        parser.add_argument("--held-out", type=int, default=150, help="conversations that are only measured")
        parser.add_argument("--minutes", type=float, help="stop training after so long; call again to go on")
        parser.add_argument("--fresh", action="store_true", help="do not go on from the checkpoint")
        parser.add_argument("--dtype", choices=tuple(registry.DTYPE_BYTES), help="of the target")
        recipe = HEADS[method]
        for f in fields(recipe):
            if f.name != "method":
                value = getattr(recipe, f.name)
                kind = _truth if isinstance(value, bool) else type(value)
                parser.add_argument("--" + f.name.replace("_", "-"), type=kind, default=value)
        o = parser.parse_args(argv)
        _threads(o.threads)
        values = {f.name: getattr(o, f.name) for f in fields(recipe) if f.name != "method"}
        shipped = o.pair == "pocket"
        # Another target's answers and features are of no use, and its head has no place among the shipped.
        runs = Path("runs") if shipped else Path("runs") / o.pair
        places = train_pair.Places(
            o.folder or runs / method,
            o.out or (ASSETS / method if shipped else runs / f"head-{method}"),
            o.work or runs / "features",
            o.answers or runs / "answers.jsonl",
            o.prompts,
        )
        loaded = registry.load(pairs.find(o.pair), roles=(), dtype=o.dtype)
        card = train_pair.main(
            loaded, replace(recipe, **values), places, o.conversations, o.held_out, o.minutes, o.fresh
        )
        sys.stdout.write(json.dumps(card, indent=1) + "\n")
        return 0

    command.__doc__ = f"Train the {method} head of a pair."
    return command


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, not {text!r}")
    return text.lower() == "true"


def evaluate(argv: Sequence[str]) -> int:
    """Held-out accuracy of a pocket target: free-running answers, compared exactly with the scenes."""
    from specvl_demo.training.evaluate import evaluate as measure

    parser = _parser("evaluate", evaluate.__doc__)
    parser.add_argument("--target", type=Path, default=ASSETS / "target")
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--examples", type=int, default=0, help="also show so many answers of each kind")
    parser.add_argument("--layers", action="store_true", help="also the loss without each layer in turn")
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args(argv)
    _threads(o.threads)
    report = measure(o.target, o.scenes, o.questions, o.examples)
    if o.layers:
        from specvl_demo.training.leave_one_out import leave_one_out

        report["layers"] = leave_one_out(o.target)
    if o.json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return 0
    for name, row in report["results"].items():
        sys.stdout.write(f"{name:28} {100 * row['right']:6.1f} %  of {row['n']}\n")
    if o.layers:
        whole = report["layers"]["whole"]
        sys.stdout.write(f"\nloss with all layers {whole:.4f}; without layer\n")
        for i, loss in enumerate(report["layers"]["without"]):
            sys.stdout.write(f"  {i:2}  {loss:.4f}  ({loss - whole:+.4f})\n")
    for e in report.get("examples", ()):
        sys.stdout.write(f"\n[{e['kind']}] {e['question']}\n  model {e['answer']}\n  truth {e['truth']}\n")
    return 0


def _threads(n: int) -> None:
    import torch

    torch.set_num_threads(n)


RECIPES: dict[str, Callable[[Sequence[str]], int]] = {
    "pocket": pocket,
    "tower": tower,
    "answers": answers,
    "drafter": drafter,
    **{method: head(method) for method in ("eagle2", "hivis", "dream")},
    "evaluate": evaluate,
}


def main(what: str, argv: Sequence[str]) -> int:
    """Run one recipe. Raises ValueError naming the known ones."""
    # Before any recipe imports transformers, which fails beside a torchvision whose operators do not load.
    import specvl_demo.targets  # noqa: F401

    if what not in RECIPES:
        raise ValueError(f"unknown recipe {what!r}; known: {', '.join(RECIPES)}")
    return RECIPES[what](argv)

"""`python -m recipes RECIPE …`: what can be trained, its options, and where the results go. A
recipe's fields are options too, by the types of their defaults; its module is imported when it
runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from specvl_demo.__main__ import run_guarded
from specvl_demo.cli.parse import (
    DTYPES,
    InputError,
    Parser,
    Row,
    add_options,
    flag,
    in_range,
    option,
)
from specvl_demo.pairs import ROLES
from specvl_demo.pairs.machine import n_cores

PUBLISHED = ("small", "mtp", "assistant")
"""Roles without a recipe; the pairs' own small models are trained by `drafter`."""
DRAFTERS = ("drafter", *(role for role in ROLES if role not in PUBLISHED))
Options = argparse.Namespace


@dataclass(frozen=True)
class Training:
    """One row of the table. run: called with the options, and the recipe with their values."""

    about: str
    run: Callable[[Options, Any], int]
    options: tuple[Row, ...]


def standards(name: str) -> Any:
    """Return a recipe's default values, whose fields are options; None if it has none."""
    if name in DRAFTERS:
        from recipes.drafters import KINDS

        return KINDS[name].recipe
    return importlib.import_module("recipes.photo").Recipe() if name == "photo" else None


def folder(name: str, default: str | Path | None, about: str) -> Row:
    return option(name, about=about, type=Path, default=None if default is None else Path(default))


def count(name: str, default: int, about: str, low: int = 1, high: int = 10**9) -> Row:
    return option(name, about=about, type=in_range(low, high), default=default)


def photo(o: Options, recipe: Any) -> int:
    from recipes import train_photo

    paths = o.data, o.base, o.tower, o.folder, o.out
    done = train_photo.main(*paths, recipe, o.minutes, o.fresh, o.start)
    stopped = "Stopped before the last step; the same command continues."
    sys.stdout.write(f"{o.out if done else stopped}\n")
    return 0


def drafter(o: Options, recipe: Any) -> int:
    """Train a drafter of any pair: the small model, or the head of a method."""
    from recipes import stages
    from recipes.drafters import KINDS
    from specvl_demo import pairs
    from specvl_demo.pairs import fitting
    from specvl_demo.serving import loader

    pair = pairs.find(o.pair)
    runs = Path("runs") / pair.id
    shipped = pairs.ASSETS / pair.id / o.recipe
    places = stages.Places(
        folder=o.folder or runs / o.recipe,
        out=_writable(o.out or (shipped if pair.shipped else runs / f"head-{o.recipe}")),
        work=o.work or runs / "features",
        answers=o.answers or runs / "answers.jsonl",
        prompts=o.prompts,
        data=o.data,
    )
    loaded = loader.load_pair(pair, roles=(), options=fitting.Options(o.dtype))
    sizes = o.conversations, o.held_out
    run = o.minutes, o.fresh, o.eight_bits, o.start
    card = stages.main(loaded, KINDS[o.recipe], recipe, places, *sizes, *run)
    sys.stdout.write(json.dumps(card, indent=1) + "\n")
    return 0


def about_drafter(method: str) -> str:
    kind = "the small drafter" if method == "drafter" else f"the {method} head"
    return f"Train {kind} of a pair on its target's own answers. RUNS is runs/PAIR."


def evaluate(o: Options, _: None) -> int:
    report, lines = _photo_report(o)
    text = json.dumps(report, indent=1) if o.json else "\n".join(lines(report))
    sys.stdout.write(f"{text}\n")
    return 0


def _photo_report(o: Options) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return the photo pair's part of `evaluate`: its report, and the function that formats one."""
    from recipes import photo_eval, train_photo
    from specvl_demo import pairs
    from specvl_demo.serving import loader
    from specvl_demo.serving.custom import custom_pair
    from specvl_demo.vlm.efficientnet_lite import register

    if o.data is None:
        raise InputError("evaluate needs --data: a folder of pictures with a captions file")
    o.folder.mkdir(parents=True, exist_ok=True)

    def tell(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    register()
    pair = pairs.find("photo") if o.target is None else custom_pair(str(o.target))
    loaded = loader.load_pair(pair, roles=(), progress=tell)
    base = train_photo.base_folder(None, o.folder)
    return photo_eval.evaluate(loaded, o.data, base, o.folder, o.photographs), photo_eval.lines


def _writable(folder: Path, option: str = "--out") -> Path:
    """Create the folder; InputError if nothing can be written there, before hours are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as fault:
        raise InputError(
            f"{option} {folder} cannot be written: {fault.strerror or fault}."
        ) from None


FRESH = flag("--fresh", "start anew instead of continuing from the checkpoint")
MINUTES = option(
    "--minutes",
    about="stop training after this many minutes; run again to continue",
    type=in_range(0.0, 1e6),
)
PHOTOGRAPHS = "pictures with a captions file in Flickr8k's or COCO's layout"
HEAD = (
    option("--pair", about="whose target (default: photo)", default="photo"),
    folder(
        "--out",
        None,
        "folder of the finished drafter (default: in assets; other pairs: RUNS/head-METHOD)",
    ),
    folder("--folder", None, "checkpoints (default: RUNS/METHOD)"),
    folder("--work", None, "answers and features (default: RUNS/features)"),
    folder("--answers", None, "generated if missing (default: RUNS/answers.jsonl)"),
    folder("--prompts", None, "questions, a line of JSON each"),
    folder("--data", None, "captioned photographs to ask about instead"),
    count("--conversations", 6000, "number of conversations to train on"),
    count("--held-out", 150, "number of held-out conversations, used only for measuring"),
    option(
        "--dtype", about="type of the target; with bfloat16, training uses it too", choices=DTYPES
    ),
    folder("--start", None, "a finished drafter of this kind to start from"),
    MINUTES,
    FRESH,
    flag("--eight-bits", "store the finished weights in eight bits, half the size"),
)
TRAININGS: dict[str, Training] = {
    "photo": Training(
        "Train the photo target's vision tower on captioned photographs; a stopped run continues.",
        photo,
        (
            option(
                "--data",
                about=f"{PHOTOGRAPHS}; classes to name in things/",
                type=Path,
                required=True,
            ),
            folder("--base", None, "language model: a folder or GGUF (default: the pair's)"),
            folder("--tower", None, "the EfficientNet-Lite package's file; a missing one is named"),
            folder("--start", None, "finished weights to continue from, without a warm phase"),
            folder("--folder", "runs/photo", "checkpoints, answers"),
            folder("--out", "runs/photo/delta", "the finished weights"),
            MINUTES,
            FRESH,
        ),
    ),
    **{method: Training(about_drafter(method), drafter, HEAD) for method in DRAFTERS},
    "evaluate": Training(
        "Held-out accuracy of the photo target: captions and questions.",
        evaluate,
        (
            folder("--target", None, "a target's folder (default: the pair's)"),
            folder("--data", None, PHOTOGRAPHS),
            folder("--folder", "runs/photo", "the base's answers"),
            count("--photographs", 1000, "number of photographs"),
            flag("--json", "print one JSON document"),
        ),
    ),
}


def _reader(standard: object) -> Callable[[str], object]:
    """Return the converter for an option of a recipe, by its default; no number may be negative."""
    if isinstance(standard, bool):
        return _truth
    if isinstance(standard, int):
        return in_range(0, 10**12)
    return in_range(0.0, 1e12) if isinstance(standard, float) else type(standard)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, not {text!r}")
    return text.lower() == "true"


def run(argv: Sequence[str]) -> int:
    """Run the recipe named by the first argument; InputError if it is unknown or cannot start."""
    chooser = Parser(
        prog="python -m recipes",
        description="Train a target, or a drafter for any pair; evaluate.",
        epilog="\n".join(f"  {name:10}{one.about}" for name, one in TRAININGS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    chooser.add_argument("recipe", help=" | ".join(TRAININGS))
    name = chooser.parse_args(argv[:1]).recipe
    if name not in TRAININGS:
        raise InputError(f"unknown recipe {name!r}; known: {', '.join(TRAININGS)}")
    import torch

    training, recipe = TRAININGS[name], standards(name)
    values = {f.name: getattr(recipe, f.name) for f in fields(recipe)} if recipe is not None else {}
    documented = [kind for kind in type(recipe).mro() if is_dataclass(kind)]
    parser = Parser(
        prog=f"python -m recipes {name}",
        description=training.about,
        epilog=" ".join(f"{kind.__doc__}" for kind in documented) or None,
        allow_abbrev=False,
    )
    threads = count("--threads", n_cores(), "CPU threads (default: all)", 1, 4096)
    of_recipe = (
        option(
            "--" + key.replace("_", "-"),
            about=f"see below (default: {value})",
            type=_reader(value),
            default=value,
        )
        for key, value in values.items()
    )
    add_options(parser, (threads, *training.options, *of_recipe))
    parser.set_defaults(recipe=name)
    args = parser.parse_args(argv[1:])
    torch.set_num_threads(args.threads)
    if recipe is not None:
        recipe = replace(recipe, **{key: getattr(args, key) for key in values})
    try:
        return training.run(args, recipe)
    except (ValueError, FileNotFoundError) as reason:
        raise InputError(str(reason)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one recipe and return its exit code, like the app's command line."""
    return run_guarded(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())

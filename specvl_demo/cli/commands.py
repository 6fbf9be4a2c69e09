"""Which function serves which command. Each imports what it needs when it is called."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def models(options: argparse.Namespace) -> int:
    """Pairs, methods, what runs here and why not."""
    from specvl_demo.cli import models as command

    return command.run(options)


def generate(options: argparse.Namespace) -> int:
    """One question, one method."""
    from specvl_demo.cli import answer as command

    return command.generate(options)


def race(options: argparse.Namespace) -> int:
    """One question, several methods."""
    from specvl_demo.cli import answer as command

    return command.race(options)


def bench(options: argparse.Namespace) -> int:
    """Methods measured beside each other."""
    from specvl_demo.cli import bench as command

    return command.run(options)


def trace(options: argparse.Namespace) -> int:
    """A saved race, checked or shown."""
    from specvl_demo.cli import trace as command

    return command.run(options)


def train(options: argparse.Namespace) -> int:
    """The pocket models, or heads for any pair, trained; the pocket models evaluated."""
    from specvl_demo.cli import train as command

    return command.run(options)


def soak(options: argparse.Namespace) -> int:
    """Random visitors against the page."""
    from specvl_demo.cli import soak as command

    return command.run(options)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "models": models,
    "generate": generate,
    "race": race,
    "bench": bench,
    "trace": trace,
    "train": train,
    "soak": soak,
}

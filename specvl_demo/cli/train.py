"""`train RECIPE …`: hands the words over to the recipe."""

from __future__ import annotations

import argparse

from specvl_demo.cli.parse import Refused
from specvl_demo.training import commands


def run(options: argparse.Namespace) -> int:
    """Run one recipe; an unknown one, or one that cannot start, is refused."""
    try:
        return commands.main(options.recipe, options.rest)
    except (ValueError, FileNotFoundError) as reason:
        raise Refused(str(reason)) from None

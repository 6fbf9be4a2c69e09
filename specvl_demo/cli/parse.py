"""What the command line accepts, and how it says no: one sentence, never a page of usage.

Checks everything that can be checked without loading a model. Standard library only.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import NoReturn

DTYPES = ("float32", "bfloat16", "float16")
MAX_NEW_TOKENS = 4096


class Refused(ValueError):
    """Input that cannot be served; the message is the sentence for standard error."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one sentence, raised as Refused."""

    def error(self, message: str) -> NoReturn:
        # argparse would print a page of usage first; the sentence alone is easier to read, and to test.
        message = re.sub(r"^argument (\S+): ", r"\1: ", message)
        raise Refused(f"{message[:1].upper()}{message[1:]} (see `{self.prog} --help`).")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of one command. Refused where they make no sense."""
    return build().parse_args(argv)


def build() -> argparse.ArgumentParser:
    """The whole parser."""
    parser = Parser(
        prog="python -m specvl_demo",
        description="Speculative decoding of vision-language models, round by round, with honest numbers.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    models = commands.add_parser(
        "models", help="pairs, methods, what runs here and why not", allow_abbrev=False
    )
    _json(models)

    generate = commands.add_parser("generate", help="answer one question with one method", allow_abbrev=False)
    _pair(generate)
    generate.add_argument("--method", required=True, metavar="NAME", help="decoding method, see `models`")
    _request(generate)
    _json(generate)

    race = commands.add_parser(
        "race", help="several methods on the same question, turn by turn", allow_abbrev=False
    )
    _pair(race)
    race.add_argument(
        "--methods",
        required=True,
        metavar="A,B,…",
        help="comma-separated; ar runs first and is added if it is missing; all: every method of the pair",
    )
    _request(race)
    _json(race)

    bench = commands.add_parser("bench", help="measure methods beside each other", allow_abbrev=False)
    bench.add_argument(
        "action",
        nargs="?",
        choices=("tune",),
        help="tune: find and keep the fastest settings on this machine",
    )
    _pair(bench)
    bench.add_argument("--methods", default="all", metavar="A,B,…", help="comma-separated, or all (default)")
    bench.add_argument(
        "--suite",
        default="pocket",
        metavar="NAME",
        help="pocket (default), peers, ablations, steps, trees, scaling, lossless, clocks, followups, "
        "serving, retention",
    )
    bench.add_argument("--repeats", type=whole(1, 1000), metavar="N", help="interleaved (mostly 5)")
    bench.add_argument("--max-new-tokens", type=whole(1, MAX_NEW_TOKENS), metavar="N")
    bench.add_argument(
        "--prompts", type=whole(1, 100_000), metavar="N", help="where a suite can ask any number"
    )
    bench.add_argument(
        "--data",
        metavar="FILE|ID",
        help="your own questions: JSON lines, the folder of a data set, or its id on the hub",
    )
    bench.add_argument("--media", metavar="FOLDER", help="where the unpacked clips of a data set lie")
    bench.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, bfloat16 on a GPU")
    bench.add_argument(
        "--peers", action="store_true", help="also Hugging Face's assisted generation and prompt lookup"
    )
    bench.add_argument(
        "--busy",
        action="store_true",
        help="print ratios, keep what was tuned, even where others used the machine",
    )
    bench.add_argument(
        "--guard", metavar="FILE", help="compare with a report of `bench --json`; 1 where worse"
    )
    bench.add_argument(
        "--from", dest="recorded", metavar="FILE", help="print or write a report of `bench --json` once more"
    )
    bench.add_argument(
        "--write",
        action="append",
        default=[],
        metavar="FILE",
        help="put the tables into the section FILE keeps for the suite; repeatable",
    )
    _set(bench)
    _json(bench)

    trace = commands.add_parser("trace", help="check or show a saved race", allow_abbrev=False)
    actions = trace.add_subparsers(dest="action", metavar="check|show", required=True)
    for name, help_text in (("check", "say what is wrong with a trace"), ("show", "sum a trace up as text")):
        action = actions.add_parser(name, help=help_text, allow_abbrev=False)
        action.add_argument("file", metavar="FILE")

    train = commands.add_parser(
        "train", help="train and evaluate the pocket models, train heads for any pair", allow_abbrev=False
    )
    train.add_argument("recipe", help="pocket, answers, drafter, eagle2, hivis, dream, or evaluate")
    train.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="options of that recipe")

    soak = commands.add_parser(
        "soak", help="random visitors against the page, for some minutes", allow_abbrev=False
    )
    soak.add_argument("--minutes", type=number(0, 1440, open_low=True), required=True, metavar="N")
    soak.add_argument("--url", metavar="URL", help="a page on this machine (default: one started for this)")
    soak.add_argument("--pair", default="pocket", metavar="ID", help="which pair is asked (default: pocket)")
    soak.add_argument("--visitors", type=whole(1, 64), default=4, metavar="N", help="at once (default: 4)")
    soak.add_argument("--seed", type=whole(0, 2**31 - 1), default=0, metavar="N")
    _json(soak)
    return parser


def whole(low: int, high: int) -> Callable[[str], int]:
    """Reads an option's whole number; what is none, or out of bounds, is refused in a sentence."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be between {low} and {high}, not {text}")
        return value

    return convert


def number(low: float, high: float, open_low: bool = False) -> Callable[[str], float]:
    """Reads an option's finite number, as `whole` does. open_low: the lower bound is refused too."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
        if not (math.isfinite(value) and low <= value <= high) or (open_low and value == low):
            above = f"above {low:g} and at most" if open_low else f"between {low:g} and"
            raise argparse.ArgumentTypeError(f"must be {above} {high:g}, not {text}")
        return value

    return convert


def _pair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pair", default="pocket", metavar="ID", help="target and drafters (default: pocket)"
    )
    parser.add_argument(
        "--target", metavar="ID", help="any model of a known family instead: a folder, or its id on the hub"
    )
    parser.add_argument(
        "--drafter",
        metavar="ID",
        help="a smaller model with the vocabulary of --target, or the folder of a head trained on it",
    )
    parser.add_argument(
        "--quantised", choices=("none", "8bit", "4bit"), default="none", help="the target's weights, on a GPU"
    )
    parser.add_argument(
        "--allow-pickle", action="store_true", help="also read .bin weights, which can run code"
    )


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on standard output, nothing else"
    )


def _set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_assignment,
        metavar="KEY=VALUE",
        help="a parameter of the method; repeatable; METHOD.KEY=VALUE where several run",
    )


def _request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt", default="", metavar="TEXT", help="the question; default: describe what is shown"
    )
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help="a picture; repeatable")
    parser.add_argument("--video", action="append", default=[], metavar="FILE", help="a clip; repeatable")
    parser.add_argument("--max-new-tokens", type=whole(1, MAX_NEW_TOKENS), default=160, metavar="N")
    parser.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="0 (default) is greedy, else at least 0.001",
    )
    parser.add_argument("--top-p", type=number(0, 1, open_low=True), default=1.0, metavar="P")
    parser.add_argument("--seed", type=whole(0, 2**63 - 1), default=0, metavar="N")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, bfloat16 on a GPU")
    _set(parser)
    parser.add_argument("--trace", metavar="FILE", help="save every record as JSON lines")


def _temperature(text: str) -> float:
    value = number(0, 10)(text)
    if 0 < value < 1e-3:
        raise argparse.ArgumentTypeError(f"must be 0 (greedy) or at least 0.001, not {text}")
    return value


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key.strip(), value.strip()

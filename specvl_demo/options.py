"""The options of an answer and of a bench: default, bounds and help of each; ways to load weights.
Only `Option.check` checks a number. Imports nothing heavy.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, Literal, TypeVar, cast

from specvl_demo.records import MAX_NEW_TOKENS

Number = TypeVar("Number", int, float)
Dtype = Literal["float32", "bfloat16", "float16"]
Quantised = Literal["none", "8bit", "4bit"]
Switch = Literal["on", "off"]

MAX_NEW_TOKENS_SERVED = 1024
"""The longest answer for a visitor of the page, who shares the machine with others."""


@dataclass(frozen=True)
class Option(Generic[Number]):
    """A number that can be set, a whole one if its default is. or_zero: 0 is valid below `low`."""

    name: str
    title: str
    default: Number
    low: Number
    high: Number
    help: str
    or_zero: bool = False

    @property
    def is_whole(self) -> bool:
        return isinstance(self.default, int)

    def range_words(self, high: float | None = None) -> str:
        """Return what a value must be, as the middle of a sentence."""
        kind = "a whole number" if self.is_whole else "a number"
        between = f"between {self.low:.12g} and {self.high if high is None else high:.12g}"
        return ("0, or " if self.or_zero else "") + f"{kind} {between}"

    def check(self, value: Any, high: float | None = None) -> Number:
        """Return any value as an int or a float; ValueError if it is not such a number.

        high: A bound below the option's own.
        """
        is_number: bool = isinstance(value, Real) and not isinstance(value, bool)
        if is_number:
            inside = self.low <= value <= (self.high if high is None else high)
            if (inside or (self.or_zero and value == 0)) and not (self.is_whole and value % 1):
                return cast("Number", int(value) if self.is_whole else float(value))
        huge = isinstance(value, int) and abs(value) >= 10**12
        came = "a number of more than 12 digits" if huge else reprlib.repr(value)
        raise ValueError(f"{self.title} must be {self.range_words(high)}, not {came}.")


NEW_TOKENS = Option(
    "max_new_tokens",
    "Max new tokens",
    160,
    1,
    MAX_NEW_TOKENS,
    "The answer stops after this many tokens.",
)
# choice: temperatures between 0 and a thousandth are refused: no answer could distinguish them from
# greedy, and floats overflow.
TEMPERATURE = Option(
    "temperature",
    "Temperature",
    0.0,
    0.001,
    10.0,
    "0 always takes the most likely token; higher values sample at random.",
    or_zero=True,
)
TOP_P = Option(
    "top_p",
    "Top-p",
    1.0,
    0.001,
    1.0,
    "Samples only from the most likely tokens that add up to this probability.",
)
SEED = Option("seed", "Seed", 0, 0, 2**31 - 1, "The same seed gives the same answer again.")
OF_ANSWERS = (NEW_TOKENS, TEMPERATURE, TOP_P, SEED)
DETAIL = Option(
    "picture_detail",
    "The picture detail",
    1.25,
    0.05,
    25.0,
    "Maximum size of a picture as shown to the model, in millions of pixels.",
)
QUESTIONS = Option("questions", "Questions", 20, 1, 100, "Maximum number of questions.")
REPEATS = Option("repeats", "Repeats", 3, 1, 10, "How often each question is answered.")

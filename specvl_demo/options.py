"""The options of an answer and of a bench: default, bounds and help of each; ways to load weights;
how tokens are sampled.

Only `Option.check` checks a number. Imports nothing heavy.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
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
TOP_K = Option(
    "top_k",
    "Top-k",
    0,
    1,
    10**6,
    "Samples only from this many most likely tokens; 0: from all.",
    or_zero=True,
)
MIN_P = Option(
    "min_p",
    "Min-p",
    0.0,
    0.0,
    1.0,
    "Samples only from tokens that have at least this share of the likeliest one's probability.",
)
REPETITION_PENALTY = Option(
    "repetition_penalty",
    "Repetition penalty",
    1.0,
    0.1,
    10.0,
    "Above 1, tokens of the prompt and of the answer so far become less likely; 1 changes nothing,"
    " 0 takes the checkpoint's own.",
    or_zero=True,
)
PRESENCE_PENALTY = Option(
    "presence_penalty",
    "Presence penalty",
    0.0,
    -2.0,
    2.0,
    "Is subtracted from the logits of tokens that the answer already has.",
)
FREQUENCY_PENALTY = Option(
    "frequency_penalty",
    "Frequency penalty",
    0.0,
    -2.0,
    2.0,
    "Is subtracted from a token's logit for each time that the answer already has it.",
)
MIN_NEW_TOKENS = Option(
    "min_new_tokens",
    "Min new tokens",
    0,
    0,
    MAX_NEW_TOKENS,
    "The answer does not end, nor stop at a string, before it has this many tokens.",
)
LOGPROBS = Option(
    "logprobs",
    "Log-probabilities",
    0,
    0,
    20,
    "Adds every token's log-probability and those of this many likeliest tokens, both the model's"
    " own and after penalties, temperature and cuts.",
)
LOGIT_BIAS = Option(
    "logit_bias", "A logit bias", 0.0, -100.0, 100.0, "Added to the logits of tokens, by id."
)
MAX_BIASED = 1024
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 200
"""Tokens with a bias; stop strings, and the characters of each."""
FIRST = (NEW_TOKENS, TEMPERATURE, TOP_P, SEED)
FURTHER = (
    TOP_K,
    MIN_P,
    REPETITION_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    MIN_NEW_TOKENS,
)
OF_ANSWERS = (*FIRST, *FURTHER, LOGPROBS)


def split_names(listed: str) -> list[str]:
    """Return the names of a list separated by commas."""
    return [name.strip() for name in listed.split(",") if name.strip()]


STOP_HELP = "text before which the answer is cut"
IGNORE_EOS_HELP = "never end the answer before its maximum length, or a stop string"


@dataclass(frozen=True)
class Sampling:
    """How the target chooses its tokens; temperature 0 is greedy. What is not set changes nothing.

    # choice: with `ignore_eos`, tokens that end an answer are never chosen, as in llama.cpp. vLLM
    writes them and goes on, after what no model was trained on.

    Attributes:
        logit_bias: Added to the logits, by token id.
        stop: Strings before the first of which the answer is cut.
    """

    temperature: float = TEMPERATURE.default
    top_p: float = TOP_P.default
    seed: int = SEED.default
    top_k: int = TOP_K.default
    min_p: float = MIN_P.default
    repetition_penalty: float = REPETITION_PENALTY.default
    presence_penalty: float = PRESENCE_PENALTY.default
    frequency_penalty: float = FREQUENCY_PENALTY.default
    min_new_tokens: int = MIN_NEW_TOKENS.default
    logprobs: int = LOGPROBS.default
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Check the numbers of `OF_ANSWERS`; ValueError with a sentence if one is out of bounds."""
        for option in OF_ANSWERS:
            if option is not NEW_TOKENS:
                object.__setattr__(self, option.name, option.check(getattr(self, option.name)))

    @property
    def greedy(self) -> bool:
        """Whether the target takes its likeliest token."""
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """Whether logits depend on what was written, or are biased, before temperature and cuts."""
        penalties = self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty
        return any((*penalties, self.logit_bias, self.ignore_eos, self.min_new_tokens))

    @property
    def record(self) -> dict[str, Any]:
        """Temperature, top-p, seed, and what else was changed, as plain values."""
        values = vars(self) | {
            "logit_bias": {str(token): bias for token, bias in self.logit_bias.items()},
            "stop": list(self.stop),
        }
        return {
            name: value
            for name, value in values.items()
            if name in ("temperature", "top_p", "seed")
            or getattr(self, name) != getattr(GREEDY, name)
        }


GREEDY = Sampling()

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

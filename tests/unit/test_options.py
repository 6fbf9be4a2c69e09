"""The valid options of an answer, and the sentence for invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from specvl_demo.options import NEW_TOKENS, SEED, TEMPERATURE, TOP_P, Option


@pytest.mark.parametrize(
    ("option", "value", "taken"),
    [
        (TEMPERATURE, 0, 0.0),
        (TEMPERATURE, 1e-3, 1e-3),
        (TEMPERATURE, 10, 10.0),
        (TOP_P, 1, 1.0),
        (NEW_TOKENS, 5.0, 5),
        (SEED, 2**31 - 1, 2**31 - 1),
    ],
)
def test_bounds_are_taken_as_numbers_of_the_options_kind(
    option: Option[Any], value: float, taken: float
) -> None:
    found = option.check(value)
    assert found == taken and type(found) is type(option.default)
    assert option.check(option.default) == option.default


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        *[
            (TEMPERATURE, value, "^Temperature must be 0, or a number between 0.001 and 10, not ")
            for value in (1e-320, 9.99e-4, -1e-9, 10.1, float("nan"), float("inf"), "hot", None)
        ],
        (TOP_P, 0.0, "between 0.001 and 1, not 0.0[.]$"),
        (NEW_TOKENS, 1.5, "a whole number between 1 and 4096, not 1.5[.]$"),
        (TOP_P, 1.5, "between 0.001 and 1, not 1.5[.]$"),
        (NEW_TOKENS, -5, "a whole number between 1 and 4096, not -5[.]$"),
        (NEW_TOKENS, True, "not True"),
        pytest.param(SEED, 10**5000, "2147483647, not a number of more than 12 digits", id="huge"),
    ],
)
def test_other_values_are_refused_in_a_sentence(
    option: Option[Any], value: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        option.check(value)


def test_a_bound_may_be_lower_for_some() -> None:
    with pytest.raises(ValueError, match="between 1 and 1024, not 2000"):
        NEW_TOKENS.check(2000, 1024)

"""What the command of the recipes accepts."""

import pytest

from recipes.__main__ import main


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "recipe"),
        ("nope", "unknown recipe 'nope'"),
        ("photo --steps x", "--steps: must be a whole number between 0 and 1e+12, not x"),
        ("eagle2 --steps -5", "--steps: must be a whole number between 0 and 1e+12, not -5"),
        ("eagle2 --pair pocket --out /proc/x", "--out /proc/x cannot be written"),
        ("photo --data d --see 7", "Unrecognized arguments: --see 7"),
    ],
)
def test_a_recipe_refuses_bad_input_in_a_sentence(capsys, line: str, part: str):
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert part in said.err and said.err.count("\n") == 1 and not said.out

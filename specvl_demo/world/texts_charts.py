"""Questions about bar charts, and their answers."""

from __future__ import annotations

import random

from specvl_demo.world.scenes import COLOURS, Chart
from specvl_demo.world.texts import Look, Turn, Word, ask, number, say


def read_chart(rng: random.Random, chart: Chart) -> Turn:
    """Every bar with its colour and value, from left to right."""
    n, values = len(chart.bars), [v for _, v in chart.bars]
    nexts = [_bar(c, v) for c, v in chart.bars]  # what comes next is known at the word before it
    many = "bar" if n == 1 else "bars"
    answer = say(rng, "chart opening", n=Word(number(n).text, nexts[0]), b=many)
    for (colour, value), ahead in zip(chart.bars, [*nexts[1:], {}], strict=True):
        parts = {"c": Word(colour, {"number": value}), "v": Word(number(value).text, ahead)}
        answer += [" ", *say(rng, "chart bar", **parts)]
    if values.count(max(values)) == 1 and n > 1:
        top = Word(chart.bars[values.index(max(values))][0])
        answer += [" ", *say(rng, "chart top", c=top)]
    at = Word("", {"number": n, "colour": nexts[0]["colour"]})
    return Turn("chart", ask(rng, "chart"), answer, chart.bars, at)


def _bar(colour: str, value: int) -> Look:
    return {"colour": list(COLOURS).index(colour), "number": value}


def ask_chart(rng: random.Random, chart: Chart) -> Turn:
    """One question about a chart: a bar's value, the highest, or how many."""
    values = [v for _, v in chart.bars]
    colour, value = rng.choice(chart.bars)
    roll = rng.random()
    if roll < 0.55:
        answer = say(rng, "bar is", c=colour, v=number(value))
        look = {"number": value}
        return Turn("bar", ask(rng, "bar", c=Word(colour, look)), answer, value, Word("", look))
    if roll < 0.85 and values.count(max(values)) == 1:
        best = chart.bars[values.index(max(values))]
        at = Word("", {"number": best[1], "colour": list(COLOURS).index(best[0])})
        answer = say(rng, "highest is", c=Word(best[0]), v=number(best[1]))
        return Turn("highest", ask(rng, "highest"), answer, best[0], at)
    answer = say(rng, "bars are", n=number(len(values)))
    return Turn("bars", ask(rng, "bars"), answer, len(values), Word("", {"number": len(values)}))

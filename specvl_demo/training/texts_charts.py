"""Questions about bar charts, and their answers. Given charts; knows no pixels."""

from __future__ import annotations

import random

from specvl_demo.training.scenes import COLOURS, Chart
from specvl_demo.training.texts import Look, Turn, Word, ask, fill, number


def read_chart(rng: random.Random, chart: Chart) -> Turn:
    """Every bar with its colour and value, from left to right."""
    n, values = len(chart.bars), [v for _, v in chart.bars]
    ways = (
        *(
            "Read the bar chart.",
            "What does the chart show?",
            "What are the values in the chart?",
            "Describe the chart.",
        ),
        *(
            "Describe the picture.",
            "What do you see?",
            "What are the values of the bars?",
            "Describe this picture in detail.",
        ),
    )
    opening = rng.choice(
        [
            "This is a bar chart with {n} {b}.",
            "The chart has {n} {b}.",
            "The picture shows a chart with {n} {b}.",
        ]
    )
    nexts = [_bar(c, v) for c, v in chart.bars]  # what comes next is known at the word before it
    answer = fill(opening, n=Word(number(n).text, nexts[0]), b="bar" if n == 1 else "bars")
    for (colour, value), ahead in zip(chart.bars, [*nexts[1:], {}], strict=True):
        form = rng.choice(
            ["The {c} bar reaches {v}.", "The {c} bar has a value of {v}.", "The {c} bar stands at {v}."]
        )
        answer += [" ", *fill(form, c=Word(colour, {"number": value}), v=Word(number(value).text, ahead))]
    if values.count(max(values)) == 1 and n > 1:
        top = Word(chart.bars[values.index(max(values))][0])
        answer += [" ", *fill(rng.choice(["The highest bar is {c}.", "So {c} is the tallest bar."]), c=top)]
    at = Word("", {"number": n, "colour": nexts[0]["colour"]})
    return Turn("chart", ask(rng, ways), answer, chart.bars, at)


def _bar(colour: str, value: int) -> Look:
    return {"colour": list(COLOURS).index(colour), "number": value}


def ask_chart(rng: random.Random, chart: Chart) -> Turn:
    """One question about a chart: a bar's value, the highest, or how many."""
    values = [v for _, v in chart.bars]
    colour, value = rng.choice(chart.bars)
    roll = rng.random()
    if roll < 0.55:
        ways = (
            "What is the value of the {c} bar?",
            "How high is the {c} bar?",
            "What does the {c} bar show?",
            "Which value has the {c} bar?",
        )
        body = rng.choice(
            ["The {c} bar reaches {v}.", "The {c} bar has a value of {v}.", "It stands at {v}."]
        )
        look = {"number": value}
        return Turn(
            "bar",
            ask(rng, ways, c=Word(colour, look)),
            fill(body, c=colour, v=number(value)),
            value,
            Word("", look),
        )
    if roll < 0.85 and values.count(max(values)) == 1:
        best = chart.bars[values.index(max(values))]
        ways = (
            "Which bar is the highest?",
            "What is the tallest bar?",
            "Which colour has the largest value?",
        )
        body = rng.choice(
            ["The highest bar is the {c} one, with a value of {v}.", "It is the {c} bar, which reaches {v}."]
        )
        at = Word("", {"number": best[1], "colour": list(COLOURS).index(best[0])})
        return Turn("highest", ask(rng, ways), fill(body, c=Word(best[0]), v=number(best[1])), best[0], at)
    ways = ("How many bars are there?", "How many bars does the chart have?", "Count the bars.")
    body = rng.choice(["There are {n} bars in the chart.", "The chart has {n} bars."])
    return Turn(
        "bars",
        ask(rng, ways),
        fill(body, n=number(len(values))),
        len(values),
        Word("", {"number": len(values)}),
    )

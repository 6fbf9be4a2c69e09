"""Writes the figures of the documents, and what Compare shows first, from their records.

    python tools/figures.py            rewrite every marked figure
    python tools/figures.py --check    exit code 1, and the lines that differ from their record

`<!-- pairs:begin -->` and `<!-- pairs:end -->` enclose a table with a row for each shipped pair, of
the records of another processor with `pairs_zen5` instead,
`<!-- methods: photo -->` and `<!-- methods end -->` one with a row for each method of a record,
`<!-- slower: photo -->` and `<!-- slower end -->` a sentence on what is slower than AR in all,
`<!-- processors:begin -->` and `<!-- processors:end -->` one with a row for each processor.
Elsewhere a mark follows its figure: `2.28<!-- photo: chain speedup_vs_ar -->` is a row's column in
docs/photo.json, a report of `bench --json`, `by_kind.story.tau` a number within a column, and
`round_steps` what a round costs in AR steps; `lossless` instead of a method takes the methods other
than AR whose answers are AR's, with `max` or `min` after the column.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Collection
from difflib import ndiff
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from specvl_demo.compare.report import (  # noqa: E402
    DRAWS,
    FEWEST_QUESTIONS,
    HF_GENERATE,
    LIBRARY,
    Answer,
    Answers,
    interval_over_questions,
    page_of,
    pooled,
    speedup,
)
from specvl_demo.report import tables  # noqa: E402

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMPARISON = ROOT / "examples" / "comparison.json"
COMPARED = {"ar", "tabed", "sage", "lvspec", "hivis", "dream", "chain", "hf-generate"}
PAIRS = {"pocket: drawn scenes": "performance", "photo: photographs": "photo"}
"""The record of each shipped pair."""
TABLE = re.compile(r"(<!-- pairs(\w*):begin -->\n).*(<!-- pairs\w*:end -->)", re.S)
PROCESSORS = re.compile(r"(<!-- processors:begin -->\n).*(<!-- processors:end -->)", re.S)
METHODS = re.compile(r"(<!-- methods: (\w+) -->\n).*?(<!-- methods end -->)", re.S)
SLOWER = re.compile(r"(<!-- slower: (\w+) -->\n).*?(<!-- slower end -->)", re.S)
BY_KIND = {"photo"}
"""Records in whose table each kind of question has a column."""
PLAIN = "text"
"""The kind of the questions without pictures."""
ABOUT_PICTURES = "about pictures"
FAR_APART = 0.25
"""Range of AR's rates over their median above which a row is marked as a rough one."""
ROUGH = (
    "\\* Rough: other programs used the machine, or AR's rates in its runs lie more than a quarter"
    " of their median apart."
)
INTERVAL = (
    f"95 %: between these lies the speedup over AR in 95 % of {DRAWS:,} resamples of the questions;"
    " smaller differences between methods may be due to the choice of questions."
)
BLANK = f"Blank: fewer than {FEWEST_QUESTIONS} questions, or a record without every answer's times."
MARKED = re.compile(r"([\d.]+)(<!-- (\w+): (\S+) (\S+?)(?: (max|min))? -->)")


def figure(record: dict[str, Any], name: str, column: str, most: str | None) -> str:
    """Return a figure with three significant digits, as in the tables; KeyError if the record has
    none.
    """
    rows = record["rows"]
    if name == "lossless":
        own = [row for row in _own(record) if row["method"] != "ar"]
        chosen = [row for row in own if row["identical_to_ar"]]
    else:
        chosen = [row for row in rows if row["method"] == name]
    if not chosen or (len(chosen) > 1 and most is None):
        raise KeyError(f"{name} is {len(chosen)} rows of the record")
    return _rounded((min if most == "min" else max)(_at(row, column) for row in chosen))


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _at(row: dict[str, Any], column: str) -> float:
    """Return a column's number, or one further in: `by_kind.story.tau`."""
    if column == "round_steps":  # S = τ / ρ
        return float(row["tau"] / row["speedup_vs_ar"])
    value: Any = row
    for name in column.split("."):
        value = value[name]
    return float(value)


def _interval(row: dict[str, Any]) -> str | None:
    interval = row.get("interval")
    return interval and " to ".join(f"{bound:.2f}" for bound in interval)


def _with_interval(row: dict[str, Any]) -> str:
    interval = _interval(row)
    return _rounded(row["speedup_vs_ar"]) + (f" ({interval})" if interval else "")


def _question_count(record: dict[str, Any]) -> str:
    settings = record["settings"]
    n = settings["repeats"]
    times = {1: "once", 2: "twice"}.get(n, f"{n} times")
    return f"{len(settings['cases'])} questions, each answered {times} by every method"


def slower(name: str) -> str:
    """Return a sentence on the methods that are slower than AR with vision and prefill."""
    rows = [row for row in _own(_record(name)) if row["speedup_total_vs_ar"] < 1]
    listed = [f"`{row['method']}` ({row['speedup_total_vs_ar']:.2f}×)" for row in rows]
    losses = f"these methods lose to AR: {', '.join(listed)}" if listed else "no method loses to AR"
    return f"From the pixels to the last token, with vision and prefill, {losses}.\n"


def pairs(suffix: str) -> str:
    """Return a table of the plain model and the fastest lossless method of every pair.

    suffix: Of the records' names.
    """
    heads = (
        "pair",
        "AR, tokens/s",
        "fastest lossless method",
        "tokens/s",
        "τ",
        "× AR",
        "95 %",
        "× HF generate",
    )
    lines = [" | ".join(heads), " | ".join(["---", *["--:"] * (len(heads) - 1)])]
    for title, name in PAIRS.items():
        record = _record(name + suffix)
        drafts = {row["method"]: row.get("drafts") for row in page_of(record).tables[0][1]}
        rows = [
            row | {"drafts": drafts[row["method"]]}
            for row in _own(record)
            if row["identical_to_ar"]
        ]
        if name in BY_KIND:
            pair = title.partition(":")[0]
            pictures = rows[0]["by_kind"].keys() - {PLAIN}
            for part, kinds in ((ABOUT_PICTURES, pictures), ("plain text", {PLAIN})):
                lines.append(_fastest(f"{pair}: {part}", _of_kinds(record, rows, kinds)))
            title = f"{pair}: both"
        lines.append(_fastest(title, rows))
    table = "".join(f"| {line} |\n" for line in lines)
    records = {title.partition(":")[0]: _record(name + suffix) for title, name in PAIRS.items()}
    ran = {LIBRARY.format(**record["machine"]) for record in records.values()}
    counts = "; ".join(f"{title}: {_question_count(record)}" for title, record in records.items())
    return f"{table}\n{counts}. {INTERVAL} {BLANK} {' '.join(sorted(ran))}\n"


def _fastest(title: str, lossless: list[dict[str, Any]]) -> str:
    """Return the cells of the fastest of these rows, after AR's speed, which is one of them."""
    best = max(lossless, key=lambda row: row["speedup_vs_ar"])
    columns = ("tokens_per_s", "tau", "speedup_vs_ar")
    figures = [_rounded(best[column]) for column in columns]
    plain = next(row["tokens_per_s"] for row in lossless if row["method"] == "ar")
    library = best.get("speedup_vs_hf_generate")
    last = _interval(best) or "", "" if library is None else _rounded(library)
    method = f"`{best['method']}`, {best['drafts']}"
    return " | ".join((title, _rounded(plain), method, *figures, *last))


def _of_kinds(
    record: dict[str, Any], rows: list[dict[str, Any]], kinds: Collection[str]
) -> list[dict[str, Any]]:
    """Return these rows' figures over these kinds of questions together, by tokens."""
    repeats = _answers(record, kinds)
    library = pooled(repeats, HF_GENERATE)
    made = []
    for row in rows:
        name = row["method"]
        parts = [part for kind, part in row["by_kind"].items() if kind in kinds]
        tokens = sum(part["tokens"] for part in parts)
        rate, tau = (
            tokens / sum(part["tokens"] / part[column] for part in parts)
            for column in ("tokens_per_s", "tau")
        )
        columns = {
            "tokens_per_s": rate,
            "tau": tau,
            "interval": interval_over_questions(repeats, name),
            "speedup_vs_hf_generate": speedup(pooled(repeats, name), library),
        }
        made.append(row | columns)
    plain = next(row["tokens_per_s"] for row in made if row["method"] == "ar")
    return [row | {"speedup_vs_ar": row["tokens_per_s"] / plain} for row in made]


def _answers(record: dict[str, Any], kinds: Collection[str]) -> list[Answers]:
    """Return what every repeat measured on these kinds of questions; empty if the record has no
    times of every answer.
    """
    repeats: dict[int, Answers] = defaultdict(lambda: defaultdict(list))
    for row in record.get("timings", ()):
        if row["kind"] in kinds:
            before = row["before_s"]
            answer = Answer([], before, before, row["seconds"], row["tokens"])
            repeats[row["repeat"]][row["method"]].append(answer)
    return list(repeats.values())


def processors() -> str:
    """Return a table of both pairs as each processor runs them, from `lab.processors`' record."""
    record = _record("processors")
    columns = ("pocket: AR", "fastest", "× AR", "photo: AR", "fastest", "× AR")
    lines = [" | ".join(("", *columns)), " | ".join(["---", *["--:"] * len(columns)])]
    for build in record["pocket"]:
        cells = [build]
        for pair in ("pocket", "photo"):
            row = record[pair][build]
            plain, gain = row["ar_tokens_per_s"], row["speedup_vs_ar"]
            mark = "\\*" if row["busy"] or row["ar_spread"] > FAR_APART else ""
            cells += [_rounded(plain) + mark, f"`{row['fastest']}`", f"{gain:.3g}{mark}"]
        lines.append(" | ".join(cells))
    table = "".join(f"| {line} |\n" for line in lines)
    return table + (f"\n{ROUGH}\n" if "\\*" in table else "")


def methods(name: str) -> str:
    """Return a table of every method of a record that was measured, the library's ways last."""
    record = _record(name)
    columns = {"tau": "τ", "tokens_per_s": "tokens/s", "speedup_vs_ar": "× AR"}
    kinds = list(record["rows"][0]["by_kind"]) if name in BY_KIND else []
    pictures = {*kinds} - {PLAIN}
    parts = _of_kinds(record, _own(record), pictures) if kinds else []
    about_pictures = {row["method"]: _with_interval(row) for row in parts}
    table = []
    for row, named in zip(record["rows"], page_of(record).tables[0][1], strict=True):
        if not row.get("tokens_per_s"):
            continue
        cells = {title: named.get(title) for title in ("method", "drafts")}
        cells |= {title: row.get(key) for key, title in columns.items()}
        cells |= {"95 %": _interval(row), "× HF generate": row.get("speedup_vs_hf_generate")}
        if kinds:
            cells[ABOUT_PICTURES] = about_pictures.get(row["method"])
        by_kind = row.get("by_kind", {})
        cells |= {kind: by_kind.get(kind, {}).get("speedup_vs_ar") for kind in kinds}
        table.append(cells | {"same as AR": named.get("same as AR")})
    wide = tables.to_markdown(table, list(table[0]))
    narrow = re.sub(r"(?<=\|)-+(?=\|)", "---", re.sub(" {2,}", " ", wide))
    below = f"{_question_count(record)}. {INTERVAL} {LIBRARY.format(**record['machine'])}"
    return f"{narrow}\n\n{below}\n\n{slower(name)}"


def _record(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((ROOT / "docs" / f"{name}.json").read_text("utf-8"))
    return record


def _own(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of this project's methods, without the peers'."""
    return [row for row in record["rows"] if row["method"] in record["settings"]["methods"]]


def written(text: str) -> str:
    """Return the text with every marked figure, and the table, as in their records."""

    def anew(found: re.Match[str]) -> str:
        _, mark, record, name, column, most = found.groups()
        return figure(_record(record), name, column, most) + mark

    text = TABLE.sub(lambda found: found[1] + pairs(found[2]) + found[3], text)
    text = PROCESSORS.sub(lambda match: match[1] + processors() + match[2], text)
    text = METHODS.sub(lambda found: found[1] + methods(found[2]) + found[3], text)
    text = SLOWER.sub(lambda found: found[1] + slower(found[2]) + found[3], text)
    return MARKED.sub(anew, text)


def comparison() -> str:
    """Return what Compare shows first: of the photo pair's record the papers' methods."""
    record = _record("photo")
    record.pop("timings", None)  # a visitor need not load them
    # `fastest_over` is of the fastest of all methods, which these may lack.
    record["rows"] = [
        row | {"fastest_over": None} for row in record["rows"] if row["method"] in COMPARED
    ]
    methods = record["settings"]["methods"]
    record["settings"]["methods"] = {name: methods[name] for name in methods if name in COMPARED}
    return json.dumps(record) + "\n"


def main(check: bool) -> int:
    stale = 0
    for path in (*DOCUMENTS, COMPARISON):
        text = path.read_text(encoding="utf-8")
        now = comparison() if path == COMPARISON else written(text)
        for line in ndiff(text.splitlines(), now.splitlines()):
            if line[0] in "+-":
                stale += 1
                print(f"{path.relative_to(ROOT)}: {line[:1000]}")
        if not check:
            path.write_text(now, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

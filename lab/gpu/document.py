"""docs/gpu.md and README's table, made from the record of `python -m lab.gpu`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specvl_demo.places import ROOT
from specvl_demo.report.tables import to_markdown

PAGE, README = ROOT / "docs" / "gpu.md", ROOT / "README.md"
BEGIN, END = "<!-- gpu:begin -->", "<!-- gpu:end -->"

COLUMNS = {
    "memory_gb": "GB",
    "tokens_per_s": "tokens/s",
    "speedup_vs_ar": "× AR",
    "tau": "τ",
    "round_steps": "a round, in steps",
    "draft_steps": "drafting",
    "verify_steps": "verifying",
    "nodes": "nodes",
    "first_prefill_s": "first token, first question (s)",
    "prefill_s": "first token, later (s)",
    "identical_to_ar": "AR's tokens",
    "first_difference": "differs at",
    "gap_nats": "by (nats)",
    "bound_ms": "least ms",
    "share": "share of the least",
    "spread": "(most - least) / median",
    "vs_step": "in steps",
    "taken_gb": "taken by torch, GB",
    "outside_gb": "context and others, GB",
}
"""Headings of columns that need another word than their name."""
HIDDEN = {"bytes", "flops", "bound_by", "context", "commit_steps", "other_steps"}
SHORT = ("method", "tokens_per_s", "speedup_vs_ar", "tau", "round_steps", "identical_to_ar")


def write(record: Mapping[str, Any]) -> list[Path]:
    """Write the page, and the table between the marks in README if it has them."""
    PAGE.write_text(text(record), encoding="utf-8")
    whole = README.read_text(encoding="utf-8")
    section = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
    if not section.search(whole):
        return [PAGE]
    made = f"{BEGIN}\n{short(record)}\n{END}"
    README.write_text(section.sub(lambda _: made, whole), encoding="utf-8")
    return [PAGE, README]


def text(record: Mapping[str, Any]) -> str:
    """Return the record as a page."""
    lines = ["# On a GPU", "", *_origin(record), ""]
    for part in record["parts"]:
        lines += [f"## {part['part']}", ""]
        if part["fault"]:
            lines += [f"Not whole: {part['fault']}", ""]
        if part["rows"]:
            lines += [table(part["rows"]), ""]
        lines += [sentence for note in part.get("notes", ()) for sentence in (note, "")]
    return "\n".join(lines)


def short(record: Mapping[str, Any]) -> str:
    """Return the races of the largest model in a few columns."""
    races = (part["rows"] for part in record["parts"] if "Pocket" not in part["part"])
    timed = ([row for row in rows if row.get("tokens_per_s")] for rows in races)
    largest = next(filter(None, timed), [])
    return table({key: row.get(key) for key in SHORT} for row in largest)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a table, without columns that are blank everywhere."""
    rows = list(rows)
    names = dict.fromkeys(key for row in rows for key in row if key not in HIDDEN)
    named = [name for name in names if any(row.get(name) is not None for row in rows)]
    headed = [{COLUMNS.get(name, name): row.get(name) for name in named} for row in rows]
    return to_markdown(headed, [COLUMNS.get(name, name) for name in named])


def _origin(record: Mapping[str, Any]) -> list[str]:
    machine = record["machine"]
    tiny = " Sizes are tiny: times say nothing of real models." if record.get("tiny") else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        f"Measured on {machine['when'][:10]} at {machine['commit'] or 'no commit'} on"
        f" {machine['title']}; {versions}.{tiny} `python -m lab.gpu --out FILE.json` measures, and"
        " `python -m lab.gpu --docs FILE.json` makes this page of it. To measure, clone this, run"
        " `make demo` once for its environment, then that command with `--folder DISK`: planned to"
        " take six minutes and 25 GB of DISK, it downloads nothing.",
        *(f"\n{remark}" for remark in record.get("remarks", ())),
        "",
        "Models have published shapes and random weights. The drafter of a real size is the"
        " target's own first layers; its acceptance is set. Heads are never right: their rows tell"
        " what a round costs. What was not measured is blank.",
    ]

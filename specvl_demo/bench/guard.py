"""Has it become slower? A new bench against a recorded one: acceptance exactly, speed loosely.

Given two reports of `bench --json`, gives sentences and whether all is well. Ratios alone are compared, never
seconds: those are the machine's. Knows nothing of how either was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EXACT = 1e-9
LOOSE = 0.15
"""A ratio may fall by this share before it counts: machines differ from hour to hour."""
CLOCKED = ("speedup_vs_ar", "speedup_vs_hf_generate", "efficiency")


@dataclass(frozen=True)
class Finding:
    """What became of one row."""

    method: str
    well: bool
    sentence: str


def settings_of(recorded: Any) -> dict[str, Any]:
    """How a record was measured; ValueError where it is no report of a bench."""
    try:
        found = recorded["settings"]
        _ = [row["method"] for row in recorded["rows"]], found["methods"], found["cases"]
        return {key: found[key] for key in ("pair", "cases", "max_new_tokens", "repeats", "methods")}
    except (TypeError, KeyError) as fault:
        raise ValueError(f"This is no report of `bench --json`: {fault} is missing.") from None


def compare(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Finding]:
    """One finding a recorded row of a method; the library's own rows are not ours to guard."""
    old, new = settings_of(recorded), settings_of(now)
    for key in ("pair", "cases", "max_new_tokens"):
        if old[key] != new[key]:
            raise ValueError(f"The two were not asked the same: {key} was {old[key]!r}, is {new[key]!r}.")
    weights = recorded["machine"].get("weights"), now["machine"].get("weights")
    same_weights = weights[0] == weights[1]
    rows = {row["method"]: row for row in now["rows"]}
    found = []
    for row in recorded["rows"]:
        name = row["method"]
        if name not in old["methods"]:
            continue
        if name not in rows:
            found.append(Finding(name, False, f"{name}: is not measured any more."))
        else:
            settled = same_weights and old["methods"][name] == new["methods"].get(name)
            found.append(_row(row, rows[name], settled, bool(now["machine"].get("busy"))))
    return found


def _row(old: Mapping[str, Any], new: Mapping[str, Any], settled: bool, busy: bool) -> Finding:
    name, faults, told = str(old["method"]), [], []
    if old.get("identical_to_ar") and not new.get("identical_to_ar"):
        faults.append("its answers differ from plain decoding now")
    before, after = old.get("tau"), new.get("tau")
    if before is not None and after is not None:
        if settled and abs(before - after) > EXACT:
            faults.append(f"τ was {before:.4f}, is {after:.4f} with the same weights and settings")
        else:
            moved = "" if settled else f" (was {before:.2f} with other weights or settings)"
            told.append(f"τ {after:.2f}{moved}")
    for key in CLOCKED:
        was, is_ = old.get(key), new.get(key)
        if busy or was is None or is_ is None:
            continue
        words = f"{key.replace('_', ' ')} {was:.2f} → {is_:.2f}"
        (faults if is_ < was * (1 - LOOSE) else told).append(words)
    if busy:
        told.append("speed not compared, the machine is busy")
    if faults:
        return Finding(name, False, f"{name}: worse: {'; '.join(faults)}.")
    return Finding(name, True, f"{name}: well: {'; '.join(told)}.")

"""Detects regressions: compares a new bench with a recorded one, row by row.

Only ratios of speeds are compared, and only between runs on the same device, type and number of
threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REPEATS = 2
"""Default number of repeats of a run that is only compared."""
TAU_LOOSE = 0.01
"""Share by which τ may fall with the same weights and settings: rounding differs between
machines.
"""
LOOSE, SPREADS = 0.15, 2.0
"""A ratio may fall by this share, or by this many times the spreads of both runs, whichever is
more.
"""
CLOCKED = ("speedup_vs_ar", "speedup_vs_hf_generate", "efficiency")
ASKED = "pair", "cases", "max_new_tokens"
MACHINE = "device", "dtype", "quantised", "threads", "kernels"


@dataclass(frozen=True)
class Finding:
    method: str
    well: bool
    sentence: str


def settings_of(recorded: Any) -> dict[str, Any]:
    """Return how a record was measured; ValueError if it is not a report of a bench."""
    try:
        found = recorded["settings"]
        _ = [row["method"] for row in recorded["rows"]]
        return {key: found[key] for key in (*ASKED, "methods")}
    except (TypeError, KeyError) as fault:
        raise ValueError(f"This is not a report of `bench --json`: {fault} is missing.") from None


def compare(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Finding]:
    """Return one finding per recorded row of a method; the library's rows are not compared."""
    old, new = settings_of(recorded), settings_of(now)
    for key in ASKED:
        if old[key] != new[key]:
            raise ValueError(f"The two runs differ: {key} was {old[key]!r}, is {new[key]!r}.")
    # Older records lack what was not there yet.
    then, here = (
        {"quantised": "none", "kernels": False} | one["machine"] for one in (recorded, now)
    )
    changed = [key for key in MACHINE if then.get(key) != here.get(key)]
    others = [f"{key} was {then.get(key)}, is {here.get(key)}" for key in changed]
    unclocked = "the machine is busy" if here.get("busy") else ", ".join(others)
    rows = {row["method"]: row for row in now["rows"]}
    found = []
    for row in recorded["rows"]:
        name = row["method"]
        if name in old["methods"] and name not in rows:
            found.append(Finding(name, False, f"{name}: is no longer measured."))
        elif name in old["methods"]:
            same = _as_it_was(then.get("weights"), here.get("weights"))
            now_set = new["methods"].get(name, {})
            kept = {key: set_to for key, set_to in old["methods"][name].items() if key in now_set}
            same = same and _as_it_was(kept, now_set)  # settings may have been removed since
            found.append(_row(row, rows[name], same, unclocked))
    return found


def _as_it_was(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> bool:
    """Whether everything that was recorded is unchanged; additions do not matter."""
    return (
        old is not None
        and new is not None
        and all(new.get(key) == value for key, value in old.items())
    )


def _row(old: Mapping[str, Any], new: Mapping[str, Any], same: bool, unclocked: str) -> Finding:
    """Compare two rows of a method.

    Args:
        same: Whether weights and settings are equal.
        unclocked: Why speeds are not compared, empty if they are.
    """
    faults: list[str] = []
    notes: list[str] = []
    if old.get("identical_to_ar") and not new.get("identical_to_ar"):
        faults.append("its answers differ from AR now")
    before, after = old.get("tau"), new.get("tau")
    if before is not None and after is not None:
        worse = same and after < before * (1 - TAU_LOOSE)
        (faults if worse else notes).append(f"τ {before:.2f} → {after:.2f}")
    if not same:
        notes.append("other weights or settings")
    loose = max(LOOSE, SPREADS * ((old.get("spread") or 0.0) + (new.get("spread") or 0.0)))
    for key in () if unclocked else CLOCKED:
        was, is_ = old.get(key), new.get(key)
        if was is not None and is_ is not None:
            worse = is_ < was * (1 - loose)
            (faults if worse else notes).append(f"{key.replace('_', ' ')} {was:.2f} → {is_:.2f}")
    if unclocked:
        notes.append(f"speed not compared: {unclocked}")
    verdict, reasons = ("worse", faults) if faults else ("well", notes)
    return Finding(old["method"], not faults, f"{old['method']}: {verdict}: {'; '.join(reasons)}.")

"""Which lanes of a run have begun and not ended, so that whatever happens every one of them gets its end.

Given a run's events as they pass; gives the ends that are missing when the run is over. A worker that was
killed, a call that was cut off, a model that raised: what was shown until then stays a valid trace.
"""

from __future__ import annotations

from typing import Any

from specvl_demo.records import Begin, End, Round, Stop, Totals


class OpenLanes:
    """The lanes of one run that are still running, with what they have so far."""

    def __init__(self) -> None:
        self._totals: dict[str, Totals] = {}

    def see(self, event: dict[str, Any]) -> None:
        """Take note of an event of the run."""
        record = event.get("record")
        if isinstance(record, Begin):
            self._totals[record.lane] = Totals()
        elif isinstance(record, Round):
            self._totals[record.lane] = self._totals[record.lane].plus(record)
        elif isinstance(record, End):
            self._totals.pop(record.lane, None)

    def close(self, stop: Stop, message: str | None) -> list[dict[str, Any]]:
        """The ends of the lanes that are left, as events; afterwards none is."""
        ends = [End(name, stop, totals, None, message) for name, totals in self._totals.items()]
        self._totals = {}
        return [{"k": "end", "record": end} for end in ends]

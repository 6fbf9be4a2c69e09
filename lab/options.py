"""What the suites of the laboratory are asked, beyond a comparison's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specvl_demo.compare.measure import GREEDY, BenchOptions
from specvl_demo.core.sampling import Sampling


@dataclass(frozen=True)
class LabOptions(BenchOptions):
    """Options of a suite: heads, a folder with one for each trained head; claim, None for all."""

    heads: Path | None = None
    claim: str | None = None
    sampling: Sampling = GREEDY

"""What the suites of the laboratory are asked, beyond a comparison's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specvl_demo.compare.measure import GREEDY, BenchOptions
from specvl_demo.core.sampling import Sampling


@dataclass(frozen=True)
class LabOptions(BenchOptions):
    """Attributes:
    prompts: Number of questions.
    heads: Of `heads`: a folder with a folder for each trained head.
    claim: Of `papers`; None for all.
    sampling: Of `lossless` and `papers`.
    """

    heads: Path | None = None
    claim: str | None = None
    sampling: Sampling = GREEDY

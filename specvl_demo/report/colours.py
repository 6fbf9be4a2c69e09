"""The colours of figures, those of the page in its light theme (a test compares them with its style
sheet). Okabe and Ito's, which colour-blind eyes keep apart; each has a second cue beside it.
"""

from __future__ import annotations

from specvl_demo.records import PHASES, Origin

ORIGINS: dict[Origin, str] = {"draft": "#009e73", "relaxed": "#e69f00", "target": "#0072b2"}
PHASE = dict(zip(PHASES, ("#56b4e9", "#0072b2", "#cc79a7", "#a8b0b8"), strict=True))

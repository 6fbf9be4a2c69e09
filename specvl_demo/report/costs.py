"""Why a method is as fast as it is: what its recorded rounds cost, and the acceptance at which they
would pay off. Given rounds and the time of an AR step; costs are in AR steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

CURVE = 41
"""Points of the curve of speedup over acceptance."""


class Spent(NamedTuple):
    """A round: tokens it emitted, tokens it drafted and their levels, seconds."""

    tokens: int
    drafted: int
    depth: int
    draft_s: float
    verify_s: float
    rest_s: float


def tau(depths: Sequence[int], acceptance: float) -> float:
    """Return the tokens per round if every drafted level is accepted with this probability, given
    that the one before it was.

    1 + a + … + a^depth (arXiv 2211.17192, equation 1), over rounds of these depths.
    """
    return sum(sum(acceptance**k for k in range(d + 1)) for d in depths) / len(depths)


def explain(
    rounds: Sequence[Spent], step_s: float, draft_cost: float | None = None
) -> dict[str, Any] | None:
    """Return what a round costs and when it pays off; None if nothing was drafted or timed.

    The result has:

        fixed, per_token: AR steps per round whatever it drafts, and per drafted token
        acceptance: the probability with which `tau` gives the recorded tokens per round
        break_even: the one at which the speedup is 1, None if even 1 is too little
        curve: (acceptance, speedup) at the recorded cost
        most: the speedup at acceptance 1
        at_paper: that of the recorded rounds at the paper's draft cost (arXiv 2601.20357, eq. 1)
    """
    n, drafted = len(rounds), sum(one.drafted for one in rounds)
    seconds = sum(one.draft_s + one.verify_s + one.rest_s for one in rounds)
    if not drafted or step_s <= 0 or seconds <= 0:
        return None
    tokens, depths = sum(one.tokens for one in rounds), [one.depth for one in rounds]
    rho = seconds / n / step_s
    # choice: the cost of drafted tokens is all of drafting, and verification beyond an AR step; a
    # line fitted through rounds of different lengths would have no slope if all have the same.
    own_s = sum(one.draft_s + max(0.0, one.verify_s - step_s) for one in rounds)
    per_token = own_s / drafted / step_s
    found = {
        "fixed": rho - per_token * drafted / n,
        "per_token": per_token,
        "drafted": drafted / n,
        "tau": tokens / n,
        "rho": rho,
        "speedup": tokens / n / rho,
        "acceptance": _reaching(depths, tokens / n),
        "break_even": _reaching(depths, rho),
        "most": tau(depths, 1.0) / rho,
        "curve": [[a, tau(depths, a) / rho] for a in (i / (CURVE - 1) for i in range(CURVE))],
        "at_paper": None,
    }
    if draft_cost is not None:
        found["at_paper"] = tokens / sum(1 + draft_cost * depth for depth in depths)
    return found


def _reaching(depths: Sequence[int], wanted: float) -> float | None:
    """Return the acceptance at which a round yields so many tokens; None if no acceptance does."""
    if wanted > tau(depths, 1.0) + 1e-9:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tau(depths, middle) < wanted else (low, middle)
    return high

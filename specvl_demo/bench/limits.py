"""How fast a method could be here, what holds it back, and which depth would be best.

Given measured costs of single forwards, counted rounds and measured round times, gives numbers and sentences.
The limit is τ / (verify(T) + Σ draft): what the method would reach if nothing but forwards took time. With
costs that the rounds themselves have lowered (`Work.lowered`) it is a bound: no efficiency is above one.
"""

from __future__ import annotations

from dataclasses import dataclass

from specvl_demo.bench.costs import StepCosts, Work
from specvl_demo.report.metrics import Comparison

WORTH = 1.03
"""A setting is named better only where it promises at least this factor."""


@dataclass(frozen=True)
class Limit:
    """speedup: the limit over plain decoding as it was measured.

    efficiency: the share of it that was reached: that of a round which its forwards take.
    """

    speedup: float
    efficiency: float
    sentence: str


def limit(beside: Comparison, work: Work, costs: StepCosts) -> Limit | None:
    """The limit of a method from step costs; None where there is nothing to compare with."""
    plain, speedup, tau = beside.ar.step_s, beside.speedup_decode, beside.metrics.totals.tau
    if not plain or not speedup or not tau or not work.rounds:
        return None
    found = tau * plain / work.forwards(costs)
    return Limit(found, speedup / found, _sentence(beside, work, costs))


def best_depth(work: Work, costs: StepCosts) -> tuple[int, float]:
    """The depth at which drafts should end for most speed, and by what factor that beats the present one."""
    deepest = max(max(one.tree.depth) for one in work.rounds)
    rates = {}
    for depth in range(deepest + 1):
        tokens, seconds = work.cut(costs, depth)
        rates[depth] = tokens / (seconds + costs.rest)
    best = max(rates, key=lambda depth: rates[depth])
    return best, rates[best] / rates[deepest]


def _sentence(beside: Comparison, work: Work, costs: StepCosts) -> str:
    """What a round brings and costs, which of it weighs most, and what would be better here."""
    rho, tau = beside.rho, beside.metrics.totals.tau
    draft, verify, rest = rho["draft"], rho["verify"], rho["commit"] + rho["other"]
    deepest = max(max(one.tree.depth) for one in work.rounds)
    if not deepest:
        return (
            f"A step takes {1e3 * beside.metrics.step_s:.2f} ms; its bare forward {1e3 * costs.step:.2f} ms."
        )
    whole = draft + verify + rest
    without = {
        "drafting holds": tau / (verify + rest) if verify + rest else 0.0,
        f"verifying {work.nodes:.0f} nodes holds": tau / (draft + min(verify, 1.0) + rest),
        "what is no forward holds": tau / (draft + verify),
        "rejected drafts hold": (deepest + 1) / whole,
    }
    worst = max(without, key=lambda name: without[name])
    told = (
        f"A round brings {tau:.1f} tokens for {whole:.1f} plain steps ({draft:.1f} to draft, {verify:.1f} to "
        f"verify, {rest:.2f} beside); {worst} it back most: {tau / whole:.2f} would be "
        f"{without[worst]:.2f} without."
    )
    best, factor = best_depth(work, costs)
    if best == 0 and factor >= WORTH:
        return f"{told} Drafting does not pay here: plain decoding is faster."
    if best < deepest and factor >= WORTH:
        return f"{told} Ending drafts at depth {best} would be best here, {factor:.2f} times as fast."
    if best == deepest:
        return f"{told} Every level pays; `bench tune` tries deeper ones."
    return f"{told} Its depth suits this machine."

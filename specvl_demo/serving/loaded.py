"""A pair in memory: its models, and what is found out about them after loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.decoders import calibration
from specvl_demo.methods.base import Models
from specvl_demo.pairs import PairSpec, on_disk
from specvl_demo.pairs.fitting import MAX_EXACT_OVERHEAD, LoadPlan
from specvl_demo.vlm import hub, loading
from specvl_demo.vlm.prompts import PromptBuilder


@dataclass(frozen=True)
class LoadedPair:
    """A pair in memory: models for the lanes, a prompt builder, and facts for the records.

    may_decline: Whether batch-invariant steps are given up where they turn out to cost AR much.
    """

    pair: PairSpec
    models: Models
    prompter: PromptBuilder
    token_texts: TokenTexts
    plan: LoadPlan
    versions: dict[str, str]
    may_decline: bool = False
    _tried: list[Any] = field(default_factory=list)

    def calibrate(self, tell: loading.Tell, steps: int | None = None) -> None:
        """Calibrate how this device runs steps fastest and whether they are exact, once for every
        model.

        steps: If the device is lent for one answer, its tokens: graphs must pay within them.
        """
        untried = [model for model in self._every_model if model not in self._tried]
        self._tried.extend(untried)
        for model in untried:
            if getattr(getattr(model, "decoder", model), "fixed", False):
                tell(f"Trying the steps of {model.name} as graphs")
            calibrate = getattr(model, "calibrate", lambda steps: None)
            if (reason := calibrate(steps)) is not None:
                tell(f"{model.name}: {reason}")
        if steps is not None and self.may_decline:
            self.models.target.decline_batch_invariance()  # no trial on a visitor's seconds
        if self.models.target.batch_invariant and self.models.target.vlm in untried:
            self._try_exactness(tell)
        _release_caches(untried)  # of these trials: others keep their graphs

    def _try_exactness(self, tell: loading.Tell) -> None:
        """Find out whether the target has batch-invariant steps here, and what they cost."""
        target = self.models.target
        free = target.decoder.batch_invariant
        if not free:
            tell(f"Trying whether {target.name} computes batch-invariant steps here")
        if target.min_invariant_rows is None:
            tell(
                "This target has no batch-invariant steps here: a row's numbers depend on the other"
                f" rows. Lossless answers compared with AR's: {target.exactness(1)}."
            )
        elif self.may_decline and not free:
            cost = calibration.exact_overhead(target.decoder, target.min_invariant_rows)
            if cost > MAX_EXACT_OVERHEAD:
                target.decline_batch_invariance()
                tell(
                    f"Steps are not exact, which would cost AR about {cost:.0%} here; --exact on"
                    " makes them so."
                )

    def release_caches(self) -> None:
        """Give up caches and graphs that are kept for the next question: before the pair is
        dropped, so that not the garbage collector destroys graphs.
        """
        _release_caches(self._every_model)

    @property
    def _every_model(self) -> list[Any]:
        return [self.models.target.vlm, *self.models.drafters.values()]

    @property
    def remarks(self) -> list[str]:
        """Return what a user should know before relying on the target or the trained heads, in
        sentences.
        """
        drafters = self.models.drafters.values()
        wishes = on_disk.config(self.pair.target, "generation_config.json") or {}
        of_heads = [remark for drafter in drafters for remark in getattr(drafter, "remarks", ())]
        return [*hub.unapplied_settings(wishes), *of_heads]


def _release_caches(models: list[Any]) -> None:
    for model in models:
        getattr(model, "release_caches", lambda: None)()

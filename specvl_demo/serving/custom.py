"""A pair of any two models of a supported family, named by the user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from specvl_demo.methods.heads import checkpoints, files
from specvl_demo.pairs import CUSTOM, Checkpoint, PairSpec, Role
from specvl_demo.pairs.machine import detect, offline
from specvl_demo.serving import availability, choosing
from specvl_demo.vlm import hub, loading
from specvl_demo.vlm.prompts import PromptBuilder


class FitReason(NamedTuple):
    """One result of a check.

    ok: Whether it allows the drafter to draft; None: for information.
    """

    ok: bool | None
    text: str


class DrafterCheck(NamedTuple):
    """Whether a drafter fits a target, why, and which methods could draft with it.

    fits: None if one of them could not be looked up.
    """

    target: str
    drafter: str
    fits: bool | None
    findings: list[FitReason]
    methods: list[str]

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self._asdict(), "findings": [one._asdict() for one in self.findings]}


def custom_pair(target: str, drafter: str | None = None) -> PairSpec:
    """Return a pair of two models, by folder or hub id, checked before weights are read.

    The drafter may also be the folder of a trained head, or an EAGLE-3 or DFlash head of the hub.

    Raises:
        ValueError: With a sentence if they do not fit.
    """
    alone = offline()
    first = hub.read(target, alone)
    checkpoint = _checkpoint(first, speaks=True)
    drafters: dict[Role, Checkpoint] = {}
    if (layer := _own_layer(first, checkpoint)) is not None:
        drafters["mtp"] = layer
    if drafter is not None:
        folder = Path(drafter)
        if folder.is_dir() and not hub.is_vlm(folder) and (kind := checkpoints.role_in(folder)):
            folder = folder.resolve()
            head = Checkpoint(str(folder), hub.stored(folder) / 2, "see its folder", True)
            drafters[kind] = head
        elif not folder.is_dir() and (card := hub.hub_head(drafter, alone)) is not None:
            drafters[card.family] = _checkpoint(card)
        else:
            second = hub.read(drafter, alone, text=True)
            if reason := hub.misfit(first, second):
                raise ValueError(reason)
            drafters[_role(second)] = _checkpoint(second)
    name = first.id.rsplit("/", 1)[-1] + (f" with {drafter.rsplit('/', 1)[-1]}" if drafter else "")
    return PairSpec(CUSTOM, name, first.title, checkpoint, drafters)


def check(target: str, drafter: str) -> DrafterCheck:
    """Check whether a drafter, a smaller model or a trained head, fits a target; folders or ids of
    the hub.

    Reads configurations, tokenizers and the headers of safetensors files, no weights.
    """
    findings: list[FitReason] = []
    methods: list[str] = []
    try:
        alone = offline()
        first = hub.read(target, alone)
        checkpoint = _checkpoint(first, not alone, speaks=True)
        supported = f"{target} is a {first.title}{_size(first)}, which is supported."
        findings.append(FitReason(True, supported))
        try:
            second = hub.read(drafter, alone, text=True)
        except hub.NotLookedUp:
            raise
        except ValueError as no_model:
            role, reasons = _head_fits(first, drafter, alone, str(no_model))
            local = Path(drafter).is_dir()
            drafts = Checkpoint(str(Path(drafter).resolve()) if local else drafter, 0.0, "", local)
        else:
            role, reasons = _role(second), _model_fits(first, second)
            drafts = _checkpoint(second, not alone)
        findings += reasons
        pair = PairSpec(CUSTOM, f"{target} with {drafter}", first.title, checkpoint, {role: drafts})
        if asked := hub.asks(availability.config(checkpoint, "generation_config.json") or {}):
            findings.append(FitReason(None, asked))
        chosen = [choosing.choose(pair, name) for name in choosing.served(pair)]
        methods = [one.method.name for one in chosen if one.drafter.role == role]
        findings.append(FitReason(None, availability.available(pair, detect()).reason))
    except hub.NotLookedUp as reason:
        findings.append(FitReason(None, str(reason)))
        return DrafterCheck(target, drafter, None, findings, methods)
    except ValueError as reason:
        findings.append(FitReason(False, str(reason)))
    fits = all(one.ok is not False for one in findings)
    return DrafterCheck(target, drafter, fits, findings, methods)


def _model_fits(first: hub.Card, second: hub.Card) -> list[FitReason]:
    """Check a smaller model; ValueError if it does not fit."""
    if reason := hub.misfit(first, second):
        raise ValueError(reason)
    reasons = [
        FitReason(True, f"{second.id} is a smaller model{_size(second)}."),
        FitReason(True, f"Its vocabulary is the target's: no id of {len(second.tokens)} differs."),
    ]
    if second.family not in hub.FAMILIES:
        reasons.append(FitReason(None, "It does not read pictures: it drafts from text only."))
    if 0 < second.positions < first.positions:
        reasons.append(
            FitReason(
                None,
                f"It takes {second.positions} positions, the target {first.positions}: with a"
                " longer prompt and answer it is refused.",
            )
        )
    return reasons


def _role(card: hub.Card) -> Role:
    return "assistant" if card.family in hub.ASSISTANTS else "small"


def _head_fits(
    first: hub.Card, drafter: str, alone: bool, no_model: str
) -> tuple[Role, list[FitReason]]:
    """Check a trained head, by its tensors' names and shapes; ValueError if it does not fit.

    no_model: Why the drafter is not a model by itself.
    """
    folder = Path(drafter)
    if not folder.is_dir() and (alone or drafter.count("/") != 1):
        raise ValueError(no_model)
    tensors, settings = (
        files.read(folder, outline=True) if folder.is_dir() else files.outline_on_hub(drafter)
    )
    if first.folder is None:
        raise ValueError(f"The configuration of {first.id} could not be read.")
    text = hub.text_config(first.folder)
    form = checkpoints.recognise(tensors, folder.name)
    width, vocab = text["hidden_size"], text["vocab_size"]
    checkpoints.fit(form, tensors, settings, folder.name, width, vocab)
    shaped = f"All {len(tensors)} tensors have the names and shapes it needs for width {width}."
    unknown = "Names and shapes cannot tell which target of this width it was trained on."
    reasons = [
        FitReason(True, f"{drafter} is {form.title}, by its tensors."),
        FitReason(True, shaped),
        *(
            FitReason(None, remark)
            for remark in files.compare(settings, text, folder.name, form.windows)
        ),
        FitReason(None, unknown),
    ]
    return form.kind, reasons


def _size(card: hub.Card) -> str:
    return f" of {card.params / 1e6:,.4g} million parameters" if card.params else ""


def _own_layer(card: hub.Card, target: Checkpoint) -> Checkpoint | None:
    """Return the MTP layer among a target's own weights; None if its config or a local folder's
    tensors have none.
    """
    if card.folder is None:
        return None
    config = hub.read_json(card.folder / "config.json")
    text = config.get("text_config", config)
    layers = text.get("mtp_num_hidden_layers")
    if not layers or (target.local and checkpoints.role_in(card.folder) != "mtp"):
        return None
    # About as large as any other layer.
    params = (target.params - target.tower) * layers / text["num_hidden_layers"]
    return Checkpoint(target.id, params, target.licence, target.local)


def _checkpoint(card: hub.Card, headers: bool = False, speaks: bool = False) -> Checkpoint:
    """Return a model's place and sizes; ValueError with a sentence if its weights do not match its
    configuration, cannot be computed here, or a folder's chat template cannot be used.

    Args:
        headers: Whether the headers of weights on the hub are read.
        speaks: Try its chat template too.
    """
    local = Path(card.id).is_dir()
    # Without a count, stored weights are assumed to be in half precision.
    params = card.params or card.bytes / 2
    name = str(Path(card.id).resolve()) if local else card.id
    checkpoint = Checkpoint(name, params, card.licence, local)
    if card.folder is None:
        return checkpoint
    tensors = None
    if not local:
        tensors = hub.headers_on_hub(card.id) if headers else {}
    model = hub.outline(card.folder, card.id, card.family in hub.FAMILIES, tensors)
    if card.family in hub.ASSISTANTS:
        return checkpoint
    hub.try_out(model, card.id)
    if local and speaks:
        PromptBuilder(loading.processor(card.folder, card.id), cast("Any", model))
    sizes = hub.sizes(model)
    # Weights stored in 32 bits may not fit into the 16 of the packed decoder's layout.
    fused_bytes = sizes.fused * (2 if sizes.halves else 4)
    held = {key: getattr(sizes, key) for key in ("kv", "tower", "looks", "reads")}
    return replace(checkpoint, fused_bytes=fused_bytes, **held)

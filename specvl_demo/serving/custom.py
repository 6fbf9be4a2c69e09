"""A pair of any two models of a supported family, named by the user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from huggingface_hub.errors import HfHubHTTPError

from specvl_demo.methods.heads import checkpoints, files
from specvl_demo.pairs import CUSTOM, Checkpoint, PairSpec, Role
from specvl_demo.pairs.machine import detect, offline
from specvl_demo.serving import availability, choosing
from specvl_demo.vlm import compatibility, sizes


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
    """Return a pair of two models, by folder or hub id, checked before weights are fetched.

    The drafter may also be the folder of a trained head, or an EAGLE-3 head of the hub. Reads
    configurations, tokenizers and lists of files.

    Raises:
        ValueError: With a sentence if they do not fit.
    """
    alone = offline()
    first = compatibility.read(target, alone)
    one = _checkpoint(first)
    drafters: dict[Role, Checkpoint] = {}
    if (layer := _own_layer(first, one)) is not None:
        drafters["mtp"] = layer
    if drafter is not None:
        role = _head_in(Path(drafter))
        head = None if Path(drafter).is_dir() else compatibility.hub_head(drafter, alone)
        if head is not None:
            drafters["eagle3"] = _checkpoint(head)
        elif role is not None:
            folder = Path(drafter).resolve()
            params = compatibility.stored(folder) / 2
            drafters[role] = Checkpoint(str(folder), params, "see its folder", True)
        else:
            second = compatibility.read(drafter, alone, text=True)
            if reason := compatibility.misfit(first, second):
                raise ValueError(reason)
            own = second.family in compatibility.ASSISTANTS
            drafters["assistant" if own else "small"] = _checkpoint(second)
    name = first.id.rsplit("/", 1)[-1] + (f" with {drafter.rsplit('/', 1)[-1]}" if drafter else "")
    return PairSpec(CUSTOM, name, first.title, one, drafters)


def check(target: str, drafter: str, anonymous: bool = False) -> DrafterCheck:
    """Check whether a drafter, a smaller model or a trained head, fits a target; folders or ids of
    the hub.

    Reads configurations, tokenizers and the headers of safetensors files, no weights. anonymous: do
    not use this machine's login at the hub.
    """
    findings: list[FitReason] = []
    methods: list[str] = []
    try:
        alone = offline()
        first = compatibility.read(target, alone, anonymous=anonymous)
        supported = f"{target} is a {first.title}{_size(first)}, which is supported."
        findings.append(FitReason(True, supported))
        try:
            second = compatibility.read(drafter, alone, text=True, anonymous=anonymous)
        except compatibility.NotLookedUp:
            raise
        except ValueError as no_model:
            role, reasons = _head_fits(first, drafter, alone, str(no_model))
            local = Path(drafter).is_dir()
            one = Checkpoint(str(Path(drafter).resolve()) if local else drafter, 0.0, "", local)
        else:
            role, reasons = _model_fits(first, second)
            one = _checkpoint(second)
        findings += reasons
        title = f"{target} with {drafter}"
        pair = PairSpec(CUSTOM, title, first.title, _checkpoint(first), {role: one})
        chosen = [choosing.choose(pair, name) for name in choosing.served(pair)]
        methods = [one.method.name for one in chosen if one.drafter.role == role]
        findings.append(FitReason(None, availability.available(pair, detect()).reason))
    except compatibility.NotLookedUp as reason:
        findings.append(FitReason(None, str(reason)))
        return DrafterCheck(target, drafter, None, findings, methods)
    except ValueError as reason:
        findings.append(FitReason(False, str(reason)))
    fits = all(one.ok is not False for one in findings)
    return DrafterCheck(target, drafter, fits, findings, methods)


def _model_fits(
    first: compatibility.Card, second: compatibility.Card
) -> tuple[Role, list[FitReason]]:
    """Check a smaller model; ValueError if it does not fit."""
    if reason := compatibility.misfit(first, second):
        raise ValueError(reason)
    reasons = [
        FitReason(True, f"{second.id} is a smaller model{_size(second)}."),
        FitReason(True, f"Its vocabulary is the target's: no id of {len(second.tokens)} differs."),
    ]
    if second.family not in compatibility.FAMILIES:
        reasons.append(FitReason(None, "It does not read pictures: it drafts from text only."))
    return ("assistant" if second.family in compatibility.ASSISTANTS else "small"), reasons


def _head_fits(
    first: compatibility.Card, drafter: str, alone: bool, no_model: str
) -> tuple[Role, list[FitReason]]:
    """Check a trained head, by its tensors' names and shapes; ValueError if it does not fit.

    no_model: Why the drafter is not a model by itself.
    """
    folder = Path(drafter)
    if not folder.is_dir() and (alone or drafter.count("/") != 1):
        raise ValueError(no_model)
    try:
        tensors, settings = (
            files.read(folder, outline=True) if folder.is_dir() else files.outline_on_hub(drafter)
        )
    except (HfHubHTTPError, OSError) as fault:
        why = f"{drafter} could not be looked up: {type(fault).__name__}"
        raise compatibility.NotLookedUp(why) from None
    if first.folder is None:
        raise ValueError(f"The configuration of {first.id} could not be read.")
    text = sizes.text_config(first.folder)
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
    return cast("Role", form.kind), reasons


def _size(card: compatibility.Card) -> str:
    return f" of {card.params / 1e6:,.4g} million parameters" if card.params else ""


def _head_in(folder: Path) -> Role | None:
    """Return the role of the trained head in a local folder; None if it has something else."""
    if not folder.is_dir() or compatibility.is_vlm(folder):
        return None
    return cast("Role | None", checkpoints.role_in(folder))


def _own_layer(card: compatibility.Card, target: Checkpoint) -> Checkpoint | None:
    """Return the MTP layer among a target's own weights; None if its config or a local folder's
    tensors have none.
    """
    if card.folder is None:
        return None
    config = compatibility.read_json(card.folder / "config.json")
    text = config.get("text_config", config)
    layers = text.get("mtp_num_hidden_layers")
    if not layers or (target.local and checkpoints.role_in(card.folder) != "mtp"):
        return None
    # About as large as any other layer.
    params = (target.params - target.tower) * layers / text["num_hidden_layers"]
    return Checkpoint(target.id, params, target.licence, target.local)


def _checkpoint(card: compatibility.Card) -> Checkpoint:
    folder = Path(card.id)
    local = folder.is_dir()
    # Without a count, stored weights are assumed to be in half precision.
    params = card.params or card.bytes / 2
    name = str(folder.resolve()) if local else card.id
    one = Checkpoint(name, params, card.licence, local)
    found = sizes.read(card.folder, card.family in compatibility.FAMILIES) if card.folder else None
    if found is None:
        return one
    # Weights stored in 32 bits may not fit into the 16 of the fused decoder's layout.
    fused_bytes = found.fused * (2 if found.halves else 4)
    held = {key: getattr(found, key) for key in ("kv", "tower", "looks", "reads")}
    return replace(one, fused_bytes=fused_bytes, **held)

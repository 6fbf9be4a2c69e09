"""The target's features of whole conversations, computed once and kept on disk in half precision.

Given a Hugging Face VLM and conversations in its own words, writes shards that heads are trained on: tokens,
which of them are answers, last hidden states; for heads that look at pictures the projected visual tokens;
for DREAM the intermediate layer of lowest attention entropy and how much the target attends to every visual
token. Text-only stores drop visual rows before they are written. Knows no heads and no losses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from specvl_demo.drafters.dream import IMPORTANCE_ROWS

SHARD = 64
"""Conversations in a file."""


@dataclass(frozen=True)
class Example:
    """A conversation as a model takes it: inputs for a batch of one, and for its n tokens whether they belong
    to an answer and whether they are visual. It begins with a prompt of at least two tokens."""

    inputs: Mapping[str, Any]
    answer: Tensor
    visual: Tensor


@dataclass(frozen=True)
class Needs:
    """What a recipe wants kept. visual: rows of visual tokens. middle: an intermediate layer and
    importance."""

    visual: bool
    middle: bool

    def covers(self, other: Needs) -> bool:
        """Whether a store with this holds what the other one wants."""
        return self.visual >= other.visual and self.middle >= other.middle


@dataclass
class Rows:
    """One conversation out of a store: n tokens, v of them visual.

    ids [n], answer [n], visual [n], features [n, D], embeds [v, D] (visual tokens), middle [n, D],
    importance [v]; the last three are empty where the store does not keep them.
    """

    ids: Tensor
    answer: Tensor
    visual: Tensor
    features: Tensor
    embeds: Tensor
    middle: Tensor
    importance: Tensor


_PER_TOKEN = ("ids", "answer", "visual", "features", "middle")
_PER_VISUAL = ("embeds", "importance")


def extended(inputs: Mapping[str, Any], answer: Sequence[int]) -> dict[str, Any]:
    """A prompt's inputs with an answer behind it."""
    ids = inputs["input_ids"]
    tail = torch.tensor([list(answer)], dtype=ids.dtype, device=ids.device)
    more: dict[str, Any] = dict(inputs)
    more["input_ids"] = torch.cat((ids, tail), 1)
    for name, value in (("attention_mask", 1), ("mm_token_type_ids", 0), ("token_type_ids", 0)):
        if name in inputs:
            filled = torch.full_like(tail, value).to(inputs[name].dtype)
            more[name] = torch.cat((inputs[name], filled), 1)
    return more


def chosen_layers(n_layers: int) -> range:
    """Layers whose attention DREAM compares: 1 .. int(0.4 L) - 2 (its code; the paper names none), at least
    layer 1."""
    return range(1, max(2, int(0.4 * n_layers) - 1))


@torch.inference_mode()
def build(
    model: nn.Module, examples: Iterable[Example], folder: Path, needs: Needs, about: Mapping[str, Any]
) -> Store:
    """Write a store, going on where an earlier call stopped.

    examples: always the same ones in the same order. about: what the store depends on, kept in its manifest;
    a folder with another manifest is refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"needs": asdict(needs), "width": model.get_input_embeddings().weight.shape[1], **about}
    path = folder / "manifest.json"
    if path.exists() and json.loads(path.read_text()) != json.loads(json.dumps(manifest)):
        raise ValueError(
            f"{folder} holds features of something else; delete it, or give another folder with --work"
        )
    path.write_text(json.dumps(manifest, indent=1))
    done = len(list(folder.glob("features-*.safetensors")))
    device = model.get_input_embeddings().weight.device
    with _watched(model, needs.middle) as watch:
        waiting: list[dict[str, Tensor]] = []
        for i, example in enumerate(tqdm(examples, desc="features", mininterval=5, disable=None)):
            if i < done * SHARD:
                continue
            waiting.append(_rows(model, example, needs, watch, device))
            if len(waiting) == SHARD:
                _write(folder, done, waiting)
                done, waiting = done + 1, []
        if waiting:
            _write(folder, done, waiting)
    return Store(folder)


def of_weights(folder: Path, weights: str | None) -> None:
    """ValueError where a store, begun or complete, holds features of other weights than these."""
    path = folder / "manifest.json"
    if path.exists() and json.loads(path.read_text()).get("weights", "unknown") != weights:
        raise ValueError(
            f"{folder} holds features of other weights; delete it, or give another folder with --work"
        )


class Store(torch.utils.data.Dataset):
    """Conversations read back, one at a time, from memory-mapped shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        self.needs = Needs(**self.manifest["needs"])
        self._files = [safe_open(f, "pt") for f in sorted(folder.glob("features-*.safetensors"))]
        self._starts = [[f.get_tensor(f"{kind}_start") for kind in ("token", "visual")] for f in self._files]
        self._where = [
            (file, row) for file, starts in enumerate(self._starts) for row in range(len(starts[0]) - 1)
        ]
        if not self._where:
            raise ValueError(f"there are no features in {folder}")

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, i: int) -> Rows:
        file, row = self._where[i]
        spans = {}
        for names, start in zip((_PER_TOKEN, _PER_VISUAL), self._starts[file], strict=True):
            spans |= dict.fromkeys(names, slice(int(start[row]), int(start[row + 1])))
        found = {name: self._files[file].get_slice(name)[span] for name, span in spans.items()}
        return Rows(**{k: v.float() if v.is_floating_point() else v for k, v in found.items()})

    def length(self, i: int) -> int:
        """Tokens of a conversation, without reading it."""
        file, row = self._where[i]
        start = self._starts[file][0]
        return int(start[row + 1] - start[row])


def text_only(rows: Rows) -> Rows:
    """The same without visual rows, as a text-only store holds them."""
    keep = ~rows.visual
    cut = {
        name: getattr(rows, name)[keep] if len(getattr(rows, name)) else getattr(rows, name)
        for name in _PER_TOKEN
    }
    return Rows(**cut, embeds=rows.embeds[:0], importance=rows.importance[:0])


# ---------------------------------------------------------------- one forward


@dataclass
class _Watch:
    """What hooks put aside during a forward."""

    decoder: dict[str, Any]
    hidden: list[Tensor]
    inputs: dict[int, Tensor]
    weights: dict[int, Tensor]


@contextmanager
def _watched(model: nn.Module, middle: bool) -> Iterator[_Watch]:
    """Hooks on the decoder; with `middle` it attends eagerly, so that attention weights exist."""
    decoder, watch = model.get_decoder(), _Watch({}, [], {}, {})
    n_layers = len(decoder.layers)
    with ExitStack() as stack:

        def hook(handle: Any) -> None:
            stack.callback(handle.remove)

        def at_decoder(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            watch.decoder = kwargs

        def after_decoder(_: nn.Module, args: Any, out: Any) -> None:
            watch.hidden = [out.last_hidden_state]

        def at_layer(i: int) -> Any:
            def keep(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
                watch.inputs[i] = args[0] if args else kwargs["hidden_states"]

            return keep

        def after_attention(i: int) -> Any:
            def keep(_: nn.Module, args: Any, out: Any) -> None:
                watch.weights[i] = out[1]

            return keep

        hook(decoder.register_forward_pre_hook(at_decoder, with_kwargs=True))
        hook(decoder.register_forward_hook(after_decoder))
        if middle:
            before = decoder.config._attn_implementation
            decoder.set_attn_implementation("eager")
            stack.callback(decoder.set_attn_implementation, before)
            for i in chosen_layers(n_layers):
                hook(decoder.layers[i].register_forward_pre_hook(at_layer(i), with_kwargs=True))
            for i in {*chosen_layers(n_layers), n_layers - 1}:
                hook(decoder.layers[i].self_attn.register_forward_hook(after_attention(i)))
        yield watch


def _rows(
    model: nn.Module, example: Example, needs: Needs, watch: _Watch, device: torch.device
) -> dict[str, Tensor]:
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in example.inputs.items()}
    model(**inputs, use_cache=False)
    n, visual = example.answer.shape[0], example.visual
    keep = torch.ones(n, dtype=torch.bool) if needs.visual else ~visual
    empty = torch.zeros(0, dtype=torch.float16)
    rows = {
        "ids": inputs["input_ids"][0].cpu().int()[keep],
        "answer": example.answer[keep],
        "visual": visual[keep],
        "features": _half(watch.hidden[0][0])[keep],
        "embeds": empty,
        "middle": empty,
        "importance": empty,
    }
    if needs.visual:
        rows["embeds"] = _half(watch.decoder["inputs_embeds"][0])[visual]
    if needs.middle:
        rows["middle"] = _half(_calmest(watch))[keep]
        begun = int(example.answer.int().argmax()) - 1
        last = watch.weights[max(watch.weights)][0].float().mean(0)[max(0, begun - IMPORTANCE_ROWS) : begun]
        rows["importance"] = _half(last.sum(0))[visual]
    return rows


def _calmest(watch: _Watch) -> Tensor:
    """For every token the input of the layer whose attention there has the least entropy, mean over heads [n,
    D] (DREAM eq. 2; per token as in its code)."""
    layers = sorted(watch.inputs)
    entropy = torch.stack([torch.special.entr(watch.weights[i][0].float()).sum(-1).mean(0) for i in layers])
    states = torch.stack([watch.inputs[i][0] for i in layers])
    return states[entropy.argmin(0), torch.arange(states.shape[1], device=states.device)]


def _half(x: Tensor) -> Tensor:
    limit = torch.finfo(torch.float16).max
    return x.float().clamp(-limit, limit).half().cpu()


def _write(folder: Path, number: int, rows: list[dict[str, Tensor]]) -> None:
    """One shard, complete or not there at all."""
    tensors = {name: torch.cat([r[name] for r in rows]) for name in rows[0]}
    for kind, name in (("token", "ids"), ("visual", "embeds")):
        sizes = torch.tensor([0, *(len(r[name]) for r in rows)])
        tensors[f"{kind}_start"] = sizes.cumsum(0)
    part = folder / f"features-{number:05}.part"
    save_file(tensors, part)
    part.rename(part.with_suffix(".safetensors"))

"""The target's features of whole conversations, computed once and stored in half precision.

Shards have tokens, which of them are answers, and last hidden states; for heads that read pictures
the projected visual tokens; on request the intermediate layer of lowest attention entropy and how
much the target attends to every visual token, or the inputs of a low, a middle and a high layer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import BatchFeature, PreTrainedModel

from specvl_demo.methods.eagle3 import default_layers as levels_of
from specvl_demo.methods.heads.features import IMPORTANCE_ROWS

SHARD = 64
"""Conversations in a file."""


@dataclass(frozen=True)
class Example:
    """A conversation as a model's input: a batch of one, and for each of its n tokens whether it
    belongs to an answer and whether it is visual. Its prompt has at least two tokens.
    """

    inputs: Mapping[str, Any]
    answer: Tensor
    visual: Tensor


@dataclass(frozen=True)
class FeatureSpec:
    """What a recipe needs stored: visual rows, a middle layer and importance, the inputs of three
    layers.
    """

    visual: bool
    middle: bool = False
    levels: bool = False

    def covers(self, other: FeatureSpec) -> bool:
        """Whether a store with this has what the other one needs."""
        enough = self.visual >= other.visual and self.levels >= other.levels
        return enough and self.middle >= other.middle


@dataclass
class Rows:
    """One conversation of a store: n tokens, v of them visual.

    ids [n], answer [n], visual [n], features [n, D], embeds [v, D] (visual tokens), middle [n, D],
    importance [v], levels [n, 3D]; the last four are empty if the store does not have them.
    """

    ids: Tensor
    answer: Tensor
    visual: Tensor
    features: Tensor
    embeds: Tensor
    middle: Tensor
    importance: Tensor
    levels: Tensor


_PER_TOKEN = ("ids", "answer", "visual", "features", "middle", "levels")
_PER_VISUAL = ("embeds", "importance")


def extended(inputs: Mapping[str, Any], answer: Sequence[int]) -> dict[str, Any]:
    """Return a prompt's inputs followed by an answer."""
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
    """Return the layers whose attention is compared for the intermediate one.

    # choice: arXiv 2505.19201 eq. 2 takes the minimum over all layers, averaged over a sample's
    tokens; its code takes it for every token among the layers 1 .. int(0.4 L) - 2, here at least
    layer 1.
    """
    return range(1, max(2, int(0.4 * n_layers) - 1))


@torch.inference_mode()
def build(
    model: PreTrainedModel,
    examples: Iterable[Example],
    folder: Path,
    needs: FeatureSpec,
    about: Mapping[str, Any],
) -> Store:
    """Write a store of examples, always in one order, continuing where an earlier call stopped.

    about: What it depends on, kept in its manifest; a folder with another manifest is refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    width = model.get_input_embeddings().weight.shape[1]
    manifest = {"needs": asdict(needs), "width": width, **about}
    path = folder / "manifest.json"
    if path.exists() and json.loads(path.read_text()) != json.loads(json.dumps(manifest)):
        raise ValueError(
            f"{folder} has features of something else; delete it, or name another folder with"
            " --work"
        )
    path.write_text(json.dumps(manifest, indent=1))
    done = len(list(folder.glob("features-*.safetensors")))
    with _watched(model, needs) as seen:
        waiting: list[dict[str, Tensor]] = []
        for i, example in enumerate(tqdm(examples, desc="features", mininterval=5, disable=None)):
            if i < done * SHARD:
                continue
            waiting.append(_rows(model, example, needs, seen))
            if len(waiting) == SHARD:
                _write(folder, done, waiting)
                done, waiting = done + 1, []
        if waiting:
            _write(folder, done, waiting)
    return Store(folder)


def of_weights(folder: Path, weights: str | None) -> None:
    """Raise ValueError if a store, begun or complete, has features of other weights than these."""
    path = folder / "manifest.json"
    if path.exists() and json.loads(path.read_text()).get("weights", "unknown") != weights:
        raise ValueError(
            f"{folder} has features of other weights; delete it, or name another folder with --work"
        )


class Store(torch.utils.data.Dataset):
    """Conversations read one at a time from memory-mapped shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        self.needs = FeatureSpec(**self.manifest["needs"])
        self._files = [safe_open(f, "pt") for f in sorted(folder.glob("features-*.safetensors"))]
        self._starts = [
            [f.get_tensor(f"{kind}_start") for kind in ("token", "visual")] for f in self._files
        ]
        sizes = (len(token) - 1 for token, _ in self._starts)
        self._where = [(file, row) for file, n in enumerate(sizes) for row in range(n)]
        if not self._where:
            raise ValueError(f"there are no features in {folder}")

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, i: int) -> Rows:
        file, row = self._where[i]
        spans: dict[str, slice] = {}
        for names, start in zip((_PER_TOKEN, _PER_VISUAL), self._starts[file], strict=True):
            spans |= dict.fromkeys(names, slice(int(start[row]), int(start[row + 1])))
        found = {name: self._files[file].get_slice(name)[span] for name, span in spans.items()}
        return Rows(**{k: v.float() if v.is_floating_point() else v for k, v in found.items()})

    def length(self, i: int) -> int:
        """Return the number of tokens of a conversation, without reading it."""
        file, row = self._where[i]
        start = self._starts[file][0]
        return int(start[row + 1] - start[row])


def text_only(rows: Rows) -> Rows:
    """Return the same without visual rows, as in a text-only store."""
    keep = ~rows.visual
    found = {name: getattr(rows, name) for name in _PER_TOKEN}
    cut = {name: x[keep] if len(x) else x for name, x in found.items()}
    return Rows(**cut, embeds=rows.embeds[:0], importance=rows.importance[:0])


# ---------------------------------------------------------------- one forward


@dataclass
class Seen:
    """What a forward captures: input embeddings and last hidden states [1, n, D], and layers."""

    embeds: Tensor | None = None
    features: Tensor | None = None
    inputs: dict[int, Tensor] = field(default_factory=dict)
    weights: dict[int, Tensor] = field(default_factory=dict)

    def calmest(self, layers: Sequence[int]) -> Tensor:
        """Return [n, D], each token's input of the layer with the least entropy of attention,
        averaged over heads (arXiv 2505.19201 eq. 2).
        """
        spread = torch.stack(
            [torch.special.entr(self.weights[i][0].float()).sum(-1).mean(0) for i in layers]
        )
        states = torch.stack([self.inputs[i][0] for i in layers])
        return states[spread.argmin(0), torch.arange(states.shape[1], device=states.device)]


@contextmanager
def _watched(model: PreTrainedModel, needs: FeatureSpec) -> Iterator[Seen]:
    """Install hooks on the decoder, which for a middle layer attends eagerly."""
    decoder, seen = model.get_decoder(), Seen()
    n = len(decoder.layers)
    chosen = set(chosen_layers(n)) if needs.middle else set()

    def into(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        seen.embeds = kwargs["inputs_embeds"]

    def out_of(_: nn.Module, args: Any, out: Any) -> None:
        seen.features = out.last_hidden_state

    def into_layer(i: int, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        seen.inputs[i] = args[0] if args else kwargs["hidden_states"]

    def out_of_attention(i: int, _: nn.Module, args: Any, out: Any) -> None:
        seen.weights[i] = out[1]

    with ExitStack() as stack:
        handles = [decoder.register_forward_pre_hook(into, with_kwargs=True)]
        handles.append(decoder.register_forward_hook(out_of))
        for i in chosen | set(levels_of(n) if needs.levels else ()):
            before = partial(into_layer, i)
            handles.append(decoder.layers[i].register_forward_pre_hook(before, with_kwargs=True))
        if needs.middle:
            stack.callback(decoder.set_attn_implementation, decoder.config._attn_implementation)
            decoder.set_attn_implementation("eager")
        for i in chosen | ({n - 1} if needs.middle else set()):
            after = partial(out_of_attention, i)
            handles.append(decoder.layers[i].self_attn.register_forward_hook(after))
        for handle in handles:
            stack.callback(handle.remove)
        yield seen


def _rows(
    model: PreTrainedModel, example: Example, needs: FeatureSpec, seen: Seen
) -> dict[str, Tensor]:
    """Return one conversation as a shard stores it; see `Rows`."""
    weight = model.get_input_embeddings().weight
    inputs = BatchFeature(dict(example.inputs)).to(weight.device, weight.dtype)
    model.base_model(**inputs, use_cache=False)  # without the output head, which nothing reads
    assert seen.embeds is not None and seen.features is not None
    n, visual = example.answer.shape[0], example.visual
    keep = torch.ones(n, dtype=torch.bool) if needs.visual else ~visual
    empty = torch.zeros(0, dtype=torch.float16)
    rows = dict.fromkeys((*_PER_TOKEN, *_PER_VISUAL), empty)
    rows["ids"] = inputs["input_ids"][0].cpu().int()[keep]
    rows |= {"answer": example.answer[keep], "visual": visual[keep]}
    rows["features"] = _half(seen.features[0])[keep]
    if needs.visual:
        rows["embeds"] = _half(seen.embeds[0])[visual]
    if needs.levels:
        levels = levels_of(len(model.get_decoder().layers))
        rows["levels"] = _half(torch.cat([seen.inputs[i][0] for i in levels], -1))[keep]
    if needs.middle:
        layers = chosen_layers(len(model.get_decoder().layers))
        rows["middle"] = _half(seen.calmest(layers))[keep]
        begun = int(example.answer.int().argmax()) - 1
        last = seen.weights[max(seen.weights)][0].float().mean(0)
        last = last[max(0, begun - IMPORTANCE_ROWS) : begun]
        rows["importance"] = _half(last.sum(0))[visual]
    return rows


def _half(x: Tensor) -> Tensor:
    limit = torch.finfo(torch.float16).max
    return x.float().clamp(-limit, limit).half().cpu()


def _write(folder: Path, number: int, rows: list[dict[str, Tensor]]) -> None:
    """Write one shard, atomically."""
    tensors = {name: torch.cat([r[name] for r in rows]) for name in rows[0]}
    for kind, name in (("token", "ids"), ("visual", "embeds")):
        sizes = torch.tensor([0, *(len(r[name]) for r in rows)])
        tensors[f"{kind}_start"] = sizes.cumsum(0)
    part = folder / f"features-{number:05}.part"
    save_file(tensors, part)
    part.rename(part.with_suffix(".safetensors"))

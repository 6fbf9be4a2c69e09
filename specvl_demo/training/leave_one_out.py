"""Does every layer of the pocket target earn its time? The loss on unseen conversations without each of them.

A block that adds nothing makes a target slow and every drafter look good beside it. Given a saved target;
draws held-out conversations; knows no methods.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import AutoProcessor, LlavaForConditionalGeneration

from specvl_demo.training import answers, batches, pocket
from specvl_demo.training.evaluate import HELD_OUT
from specvl_demo.training.train_drafter import padded
from specvl_demo.training.train_pocket import see


@torch.inference_mode()
def leave_one_out(folder: Path, n: int = 96) -> dict[str, float | list[float]]:
    """Mean negative log-likelihood (nats a token) of `n` held-out conversations: `whole`, and `without` each
    layer of the language model in turn.
    """
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoProcessor.from_pretrained(folder).tokenizer
    drawn = [answers.drawn(HELD_OUT + 2 * 10**9 + i) for i in range(n)]
    rows = [batches.encode(tokenizer, c.sample) for c in drawn]
    ids = padded([r.ids for r in rows])
    labels = torch.full_like(ids, -100)
    for label, row in zip(labels, rows, strict=True):
        label[: len(row.labels)] = torch.tensor(row.labels)
    visual = see(model, batches.to_pixels([p for c in drawn for p in c.pictures]))
    x = model.get_input_embeddings()(ids)
    x = x.masked_scatter((ids == pocket.IMAGE).unsqueeze(-1), visual.reshape(-1, x.shape[-1]))
    layers = range(len(model.get_decoder().layers))
    without = [
        _loss(model, x, labels, skip) for skip in tqdm(layers, desc="without each layer", mininterval=5)
    ]
    return {"whole": _loss(model, x, labels, None), "without": without}


def _loss(model: LlavaForConditionalGeneration, x: Tensor, labels: Tensor, skip: int | None) -> float:
    """The loss of embedded conversations [B, L, D] when layer `skip` passes its input on unchanged."""
    decoder = model.get_decoder()
    positions = torch.arange(x.shape[1])[None]
    rotary = decoder.rotary_emb(x, positions)
    for i, layer in enumerate(decoder.layers):
        if i != skip:
            x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=rotary)
    asked = labels[:, 1:] != -100
    logits = model.lm_head(decoder.norm(x)[:, :-1][asked])
    return F.cross_entropy(logits, labels[:, 1:][asked]).item()

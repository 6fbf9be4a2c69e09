"""Exactness as properties: random targets, drafters, trees, limits; and sampling, counted.

Tables replace models, so their distribution is known exactly. Random trees, masks, positions and
caches of real models are compared with the library's own forward in
tests/contract/families/test_every_family.py.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
import torch

from specvl_demo import records
from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.engine import Lane, Request, SharedPrefill, race
from specvl_demo.core.sampling import Sampling
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.policies import (
    BestFirst,
    BestFirstSettings,
    Chain,
    ChainSettings,
    RankedTree,
)
from specvl_demo.methods.sage import EntropyTree, SageSettings
from specvl_demo.records import End, Round
from tests.conftest import spell
from tests.fakes import TableDrafter, TableSession, TableTarget, parts, table_prompt

V = 12
RANKS = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0)]


def table(rng: random.Random, like: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [V, V] after every token; near another table where one is given."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    noise = torch.randn(V, V, generator=generator)
    return noise * 1.5 if like is None else like + noise * rng.choice((0.1, 0.7, 3.0))


def policy(rng: random.Random) -> object:
    """Any shape of draft."""
    return rng.choice(
        (
            lambda: Chain(ChainSettings(rng.randint(1, 9), rng.choice((0.0, 0.3)))),
            lambda: RankedTree(RANKS[: rng.randint(1, len(RANKS))]),
            lambda: BestFirst(
                BestFirstSettings(
                    nodes=rng.randint(2, 14), width=rng.randint(3, 5), loops=rng.randint(2, 4)
                )
            ),
            lambda: EntropyTree(
                SageSettings(growth="online", max_nodes=6, max_width=2, max_depth=3)
            ),
            OneNode,
        )
    )()


class WatchedSession(TableSession):
    """Looks at every tree: siblings differ, the root is the last token emitted."""

    def score(self, tree: DraftTree) -> Scores:
        tokens = tree.tokens.tolist()
        for children in tree.shape.children:
            said = [tokens[child] for child in children]
            assert len(set(said)) == len(said), (
                "two children say the same: one could never be reached"
            )
        left = self.room - (
            len(self.decided) - 1
        )  # a prompt of two tokens, the last of which is the root
        assert max(tree.shape.depth) < left, "drafted more than may still be said"
        return super().score(tree)


class WatchedTarget(TableTarget):
    def open(self, prefill, max_new_tokens, max_nodes, capture=None) -> WatchedSession:
        session = WatchedSession(self, prefill.cache)
        session.room = max_new_tokens
        self.sessions.append(session)
        return session


def plainly(target: TableTarget, asked: Request) -> tuple[list[int], str]:
    """Return the answer of plain decoding, token by token, and why it stops: the rules, written
    again.
    """
    found = list(race([Lane("ar", parts(), SharedPrefill(asked))]))
    return [t.id for r in found if isinstance(r, Round) for t in r.tokens], found[-1].stop


@pytest.mark.parametrize("block", range(4))
def test_random_drafts_never_change_the_answer(block: int) -> None:
    """400 random cases: table, drafter, tree, limit, ends, greedy or sampled: the plain answer, to
    the token.

    Besides: an end is the last token and ends the lane, the limit holds, the cache holds the prompt
    and the answer but for its last token, records add up.
    """
    accepted = 0
    for seed in range(100 * block, 100 * (block + 1)):
        rng = random.Random(seed)
        logits = table(rng)
        eos = frozenset(rng.sample(range(1, V), rng.choice((0, 0, 1, 3))))
        sampling = rng.choice(
            (Sampling(), Sampling(0.9, seed=seed), Sampling(1.4, top_p=0.8, top_k=5, seed=seed))
        )
        n = rng.randint(1, 24)
        target = WatchedTarget(logits, eos=eos)
        asked = Request("r", table_prompt(), target, TokenTexts(spell), sampling, n, detail="light")
        told, stop = plainly(target, asked)
        drafter = TableDrafter(table(rng, like=logits))
        made = replace(parts(drafter, policy(rng)), draws=rng.choice(("argmax", "shared")))
        found = list(race([Lane("l", made, SharedPrefill(asked))]))
        said = [t.id for r in found if isinstance(r, Round) for t in r.tokens]
        assert said == told, seed
        end = found[-1]
        assert isinstance(end, End) and end.stop == stop == ("eos" if said[-1] in eos else "length")
        assert not eos & set(said[:-1]) and len(said) <= n and (len(said) == n or stop == "eos")
        assert target.sessions[-1].decided == [0, 0, *said[:-1]]
        records.validate_trace(found)
        accepted += end.totals.n_accepted
    sys.stdout.write(
        f"100 random cases, {accepted} drafted tokens kept, every answer the plain one\n"
    )
    assert accepted > 200  # equal answers would prove nothing if no draft were ever right

"""Verifiers of sampled drafts: their distribution by enumeration, and what each keeps."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.engine import Lane, Request, SharedPrefill
from specvl_demo.core.sampling import Sampling, probabilities
from specvl_demo.methods.base import choose
from specvl_demo.methods.chain import Chain, ChainSettings
from specvl_demo.methods.rejection import BlockVerifier, RejectionVerifier, SampledVerifier
from specvl_demo.records import LAW
from tests.conftest import spell
from tests.fakes import TableDrafter, TableTarget, parts, table_prompt

TARGET = torch.tensor([[1.0, 0.2, -0.5], [0.1, 0.9, 0.6], [-0.3, 0.0, 1.4]])
DRAFTER = TARGET[[1, 0, 2]] * 1.3
SAMPLINGS = [Sampling(1.0), Sampling(0.6, top_p=0.8), Sampling(1.7, top_k=2)]
KINDS = [RejectionVerifier, BlockVerifier]


def laws(
    verifier: SampledVerifier, sampling: Sampling, k: int, drawn: bool
) -> tuple[dict[tuple[int, ...], float], float]:
    """Return the distribution of the next k + 1 tokens, of a round followed by the target; and how
    many drafts the round keeps.

    drawn: The drafter's tokens are sampled, else its likeliest.
    """
    p, q = (probabilities(table, sampling).double() for table in (TARGET, DRAFTER))
    law: dict[tuple[int, ...], float] = defaultdict(float)
    kept = 0.0
    for drafted in itertools.product(range(3), repeat=k):
        path = (0, *drafted)
        own = q if drawn else torch.nn.functional.one_hot(q.argmax(-1), 3).double()
        chance = float(torch.stack([own[a, b] for a, b in itertools.pairwise(path)]).prod())
        if not chance:
            continue
        stay, after = verifier.chances(p[list(path)], own[list(path[:-1])], torch.tensor(drafted))
        assert float(stay.sum()) == pytest.approx(1.0) and bool((stay >= 0).all())
        for n, probability in enumerate(stay.tolist()):
            kept += chance * probability * n
            rest = after[n] / after[n].sum()
            for y in range(3):
                said = (*drafted[:n], y)
                for tail in itertools.product(range(3), repeat=k - n):
                    weight = chance * probability * float(rest[y])
                    for a, b in itertools.pairwise((y, *tail)):
                        weight *= float(p[a, b])
                    law[(*said, *tail)] += weight
    return law, kept


def targets(sampling: Sampling, n: int) -> dict[tuple[int, ...], float]:
    p = probabilities(TARGET, sampling).double()
    return {
        said: float(torch.stack([p[a, b] for a, b in itertools.pairwise((0, *said))]).prod())
        for said in itertools.product(range(3), repeat=n)
    }


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "cool-top-p", "hot-top-k"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drawn", [True, False])
def test_a_round_has_the_targets_law(
    kind: type[SampledVerifier], sampling: Sampling, drawn: bool
) -> None:
    """Also of drafts that are not drawn: a lookup's, the likeliest tokens."""
    for k in (1, 2, 3):
        law, _ = laws(kind(), sampling, k, drawn)
        for said, weight in targets(sampling, k + 1).items():
            assert law[said] == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "cool-top-p", "hot-top-k"])
def test_blocks_keep_no_fewer_tokens(sampling: Sampling) -> None:
    for k in (1, 2, 3):
        each, block = (laws(kind(), sampling, k, True)[1] for kind in KINDS)
        assert block >= each - 1e-12
        assert k == 1 or not each or block > each + 1e-6 or sampling.top_p < 1


def lane(kind: type[SampledVerifier], seed: int, temperature: float = 1.0) -> tuple[str, list[int]]:
    target = TableTarget(TARGET)
    asked = Request(
        "r", table_prompt(), target, TokenTexts(spell), Sampling(temperature, seed=seed), 3
    )
    made = replace(
        parts(TableDrafter(DRAFTER), Chain(ChainSettings(4))), draws="own", verifier=kind()
    )
    one = Lane("lane", made, SharedPrefill(asked))
    begin, said = one.begin(), []
    while not one.done:
        said += [token.id for token in one.step().tokens]
    return begin.exactness, said


@pytest.mark.parametrize("kind", KINDS)
def test_whole_answers_have_the_targets_law(kind: type[SampledVerifier]) -> None:
    """800 seeded answers through the engine, several rounds each: chi-square at 1e-6. The seeds
    are fixed, so this cannot fail by chance."""
    n, wanted = 800, targets(Sampling(1.0), 3)
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    for seed in range(n):
        counts[tuple(lane(kind, seed)[1])] += 1
    excess = sum((counts[said] - n * p) ** 2 / (n * p) for said, p in wanted.items())
    freedom = torch.tensor((len(wanted) - 1) / 2)
    assert torch.special.gammaincc(freedom, torch.tensor(excess / 2)) > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_it_promises_the_law_and_at_temperature_zero_the_answer(
    kind: type[SampledVerifier],
) -> None:
    assert lane(kind, 1)[0] == LAW
    exactness, said = lane(kind, 1, temperature=0.0)
    last, greedy = 0, []
    for _ in range(3):
        last = int(TARGET[last].argmax())
        greedy.append(last)
    assert (exactness, said) == ("exact", greedy)


def test_trees_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="judges chains; policy 'static-tree' drafts trees"):
        choose("custom", {"verifier": "rejection", "policy": "static-tree"})
    assert choose("custom", {"verifier": "block", "policy": "adaptive-chain"}).lossless


def test_a_hybrids_copies_count_as_certain() -> None:
    """They were not drawn, so each stays with the target's own probability of it."""
    p = probabilities(TARGET, Sampling(1.0)).double()
    drafted: Tensor = torch.tensor([1, 2])
    certain = torch.nn.functional.one_hot(drafted, 3).double()
    stay, _ = RejectionVerifier().chances(p[[0, 1, 2]], certain, drafted)
    assert stay.tolist() == pytest.approx(
        [float(1 - p[0, 1]), float(p[0, 1] * (1 - p[1, 2])), float(p[0, 1] * p[1, 2])]
    )

"""TABED's weights: running sums must say what the whole history, looked at again, would say."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampling
from specvl_demo.decoders import kernels
from specvl_demo.methods import tabed
from specvl_demo.methods.tabed import Mixture, MixtureSettings, divergence

V = 31


@pytest.fixture(params=[kernels.available(), False], autouse=True)
def computed_by(request, monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: request.param)


def begun(views: list[str], sampling: Sampling | None = None, **settings: object) -> Mixture:
    made = Mixture(MixtureSettings(**settings))
    encoded = SimpleNamespace(ids=torch.zeros(1))
    start = SimpleNamespace(encoded=encoded, sampling=sampling or Sampling())
    made.begin(start, views)
    return made


def blocks(m: int, n: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """n rounds of views' log-probabilities [m, p, V] and target logits [p, V], first near it."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for i in range(n):
        p = int(torch.randint(1, 6, (), generator=g))
        target = torch.randn(p, V, generator=g) * 3
        noise = torch.randn(m, p, V, generator=g) * 2
        pull = torch.tensor([1.0 if (view == 0) == (i < n // 2) else 0.3 for view in range(m)])
        made.append(((pull[:, None, None] * target + noise).log_softmax(-1), target))
    return made


def told(made: Mixture, block: tuple[Tensor, Tensor]) -> None:
    made.update(block[0], block[1], [0] * block[1].shape[0])


def brute_force_grid(history: list[tuple[Tensor, Tensor]], m: int) -> Tensor:
    """The reference's search: every vector of the grid, every stored position, plain loops."""
    steps = [i / 10 for i in range(11)]
    grid = [w for w in itertools.product(steps, repeat=m) if abs(sum(w) - 1) < 1e-9]
    best, best_key = None, None
    for w in grid:
        right, error = 0, 0.0
        for logp, logits in history:
            for t in range(logits.shape[0]):
                q = sum(w[i] * logp[i, t].exp() for i in range(m))
                p = logits[t].softmax(-1)
                right += int(q.argmax() == p.argmax())
                error += float((p * (p.log() - q.log())).sum())
        key = (-right, round(error, 4))
        if best_key is None or key < best_key:
            best, best_key = w, key
    return torch.tensor(best)


@pytest.mark.parametrize("m", [2, 3])
def test_grid_weights_equal_a_search_over_the_whole_history(m: int):
    made = begun([str(i) for i in range(m)])
    history = []
    for block in blocks(m, 8, seed=m):
        told(made, block)
        history.append(block)
        assert torch.allclose(made.weights, brute_force_grid(history, m), atol=1e-6)


def test_weights_by_divergence_are_the_inverse_errors_over_the_whole_history():
    history, made = blocks(2, 5, seed=7), begun(["M", "T"], weights="kld")
    errors = [
        sum(divergence(logits.softmax(-1), logp[i].exp()).sum() for logp, logits in history)
        for i in range(2)
    ]
    for block in history:
        told(made, block)
    raw = 1 / torch.stack(errors)
    assert torch.allclose(made.weights, raw / raw.sum(), atol=1e-5)


def test_weights_of_a_round_are_those_it_was_drafted_with():
    made = begun(["M", "T"])
    block = blocks(2, 1, seed=1)[0]
    assert made.round_notes()["weights"] == {"M": 0.5, "T": 0.5}
    told(made, block)
    assert list(made.round_notes()["weights"].values()) == pytest.approx(made.weights.tolist())
    equal = begun(["M", "T"], weights="uniform")
    told(equal, block)
    assert equal.weights.tolist() == [0.5, 0.5] != made.weights.tolist()


def test_sampling_compares_with_the_distribution_the_target_draws_from():
    block = blocks(2, 1, seed=9)[0]
    hot = begun(["M", "T"], weights="kld", sampling=Sampling(temperature=2.0))
    told(hot, block)
    by_hand = begun(["M", "T"], weights="kld")
    told(by_hand, (block[0], block[1] / 2))
    assert torch.allclose(hot.weights, by_hand.weights, atol=1e-6)


def test_of_a_large_vocabulary_the_tokens_that_matter_decide(monkeypatch):
    # Not torch's numbers, which differ by processor.
    rng, size = np.random.default_rng(2), 600
    target = torch.tensor(rng.normal(size=(40, size)) * 5)  # nearly all on a few tokens, as models
    logp = (target + 3 * torch.tensor(rng.normal(size=(3, 40, size)))).float().log_softmax(-1)
    target = target.float()
    few, whole = begun(["M", "T", "C"]), begun(["M", "T", "C"])
    told(few, (logp, target))
    monkeypatch.setattr(tabed, "_LIKELY", size)
    monkeypatch.setattr(tabed, "_RIVALS", size)
    told(whole, (logp, target))
    assert 0 < few._sums[0].min() < few._sums[0].max() < 40
    assert torch.equal(few._sums[0], whole._sums[0])  # who says the target's token
    errors = [made._sums[1] - made._sums[1].min() for made in (few, whole)]
    # By how much they err more than the best.
    assert torch.allclose(*errors, rtol=0.01, atol=0.05)
    assert torch.equal(few.weights, whole.weights)


def test_a_token_that_the_target_finds_improbable_can_still_be_a_views_first():
    target = torch.zeros(1, 600)
    target[0, :70] = 9 - 0.1 * torch.arange(70)
    logp = torch.zeros(2, 1, 600)
    logp[0, 0, 500], logp[1, 0, 0] = 5.0, 5.0
    made = begun(["wrong", "right"])
    told(made, (logp.log_softmax(-1), target))
    assert made.round_notes()["matches"] == {"wrong": 0, "right": 1}

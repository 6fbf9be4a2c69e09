"""LVSpec and FLy on hand-made rounds: what stays, what is relaxed, what is never let through."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler, Sampling
from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import Scores, Verdict, Vocabulary
from specvl_demo.core.verification import Branch, RelaxedVerifier
from specvl_demo.methods.fly import EntropyVerifier, FlySettings
from specvl_demo.methods.lvspec import LvspecSettings, VisualVerifier

V, D, EOS, IMAGE = 50, 8, 1, 2
VOCABULARY = Vocabulary(size=V, banned=(IMAGE,), eos=frozenset({EOS}), special=frozenset({0, EOS}))
CPU = torch.device("cpu")


def start(visual: Tensor, temperature: float = 0.0) -> SimpleNamespace:
    """A prompt of the given visual hidden states [l, D] and two text positions."""
    flags = torch.tensor([True] * len(visual) + [False] * 3)
    hidden = torch.cat([visual, torch.randn(2, D)])
    return SimpleNamespace(
        sampling=Sampling(temperature=temperature),
        vocabulary=VOCABULARY,
        encoded=SimpleNamespace(visual=flags),
        prefill=SimpleNamespace(hidden=hidden),
    )


def scores(target: list[int], hidden: Tensor | None = None, sure: float = 9.0) -> Scores:
    logits = torch.zeros(len(target), V)
    logits[range(len(target)), target] = sure
    return Scores(logits=logits, hidden=torch.randn(len(target), D) if hidden is None else hidden)


def judged(
    verifier: RelaxedVerifier, tree: DraftTree, told: Scores, visual: Tensor | None = None
) -> Verdict:
    verifier.begin(start(torch.eye(D)[:1] if visual is None else visual))
    return verifier.verify(tree, told, Sampler(Sampling(), CPU))


def drafted(tokens: list[int], parent: tuple[int, ...] | None = None) -> DraftTree:
    return DraftTree(
        torch.tensor([10, *tokens]), chain(len(tokens)) if parent is None else shape_of(parent)
    )


def facing(angles: list[float]) -> Tensor:
    """Hidden states of the given cosines with the picture's only direction; the root's is 0."""
    rows = torch.zeros(len(angles) + 1, D)
    for i, cosine in enumerate(angles, 1):
        rows[i, 0], rows[i, 1] = cosine, (1 - cosine**2) ** 0.5
    rows[0, 1] = 1.0
    return rows * 3.0


def test_the_least_visual_mismatches_stay_and_the_most_visual_stops_the_round():
    """Ten drafted, none matches. λ = .7 loosens the seven least visual: all but 2, 5 and 9."""
    relevance = [0.1, 0.2, 0.9, 0.1, 0.3, 0.8, 0.2, 0.1, 0.3, 0.7]
    told = scores(list(range(30, 41)), facing(relevance))
    verdict = judged(VisualVerifier(LvspecSettings(shift=False)), drafted([*range(11, 21)]), told)
    assert verdict.path == [0, 1, 2]
    assert verdict.relaxed == [True, True]
    # Drafted tokens, then the target's own where the third was refused.
    assert verdict.tokens == [11, 12, 32]
    assert verdict.notes["loosened"] == [1, 2, 4, 5, 7, 8, 9]
    assert verdict.notes["cut"] == pytest.approx(0.3)
    assert verdict.notes["relevance"] == pytest.approx(relevance, abs=1e-4)
    assert verdict.notes["relaxed_nodes"] == [1, 2]


def test_matches_are_not_called_relaxed_and_a_whole_block_gets_its_bonus():
    tokens = [11, 12, 13, 14]
    told = scores([11, 30, 13, 14, 40], facing([0.1, 0.2, 0.3, 0.4]))
    verdict = judged(VisualVerifier(LvspecSettings(loose=0.5, shift=False)), drafted(tokens), told)
    assert verdict.tokens == [11, 12, 13, 14, 40]
    assert verdict.relaxed == [False, True, False, False]


def test_relevance_is_the_mean_of_the_largest_cosines():
    picture, hidden = torch.randn(30, D), torch.randn(4, D) * 5
    verifier = VisualVerifier(LvspecSettings(anchors=5))
    verifier.begin(start(picture))
    told = verifier.acceptance_signal(scores([1, 2, 3, 4], hidden), drafted([11, 12, 13]))
    cosine = torch.nn.functional.cosine_similarity(hidden[:, None], picture[None], dim=-1)
    assert torch.allclose(told, cosine.sort(descending=True).values[:, :5].mean(-1), atol=1e-5)
    few = VisualVerifier(LvspecSettings(anchors=100))
    few.begin(start(picture))
    assert torch.allclose(
        few.acceptance_signal(scores([1, 2, 3, 4], hidden), drafted([11, 12, 13])), cosine.mean(-1)
    )


def test_position_shift_accepts_what_the_branch_says_elsewhere():
    """The target's next token is 13; the draft has it third (case 1 of the paper's figure 5)."""
    tree, told = drafted([11, 12, 13]), scores([13, 12, 13, 40], facing([0.9, 0.9, 0.9]))
    with_shift = judged(VisualVerifier(LvspecSettings(loose=0.0, shift=True)), tree, told)
    assert with_shift.tokens == [11, 12, 13, 40] and with_shift.relaxed == [True, False, False]
    without = judged(VisualVerifier(LvspecSettings(loose=0.0, shift=False)), tree, told)
    assert without.tokens == [13]


@pytest.mark.parametrize("special", [0, EOS, IMAGE])
@pytest.mark.parametrize(
    "verifier",
    [VisualVerifier(LvspecSettings(loose=1.0)), EntropyVerifier(FlySettings(gate=0.0, window=0))],
)
def test_special_tokens_are_never_let_through(verifier: RelaxedVerifier, special: int):
    """Neither a drafted end that the target does not emit, nor a draft beyond the target's end."""
    invented = judged(verifier, drafted([11, special, 13]), scores([30, 31, 32, 33], sure=1.0))
    assert invented.tokens == [11, 31]
    overrun = judged(verifier, drafted([11, 12, 13]), scores([30, special, 32, 33], sure=1.0))
    assert overrun.tokens == [11, special]
    agreed = judged(verifier, drafted([11, special]), scores([30, special, 32], sure=1.0))
    assert agreed.tokens == [11, special, 32] and agreed.relaxed == [True, False]


def test_a_prompt_without_a_picture_is_strict_and_says_so():
    verdict = judged(
        VisualVerifier(LvspecSettings(loose=1.0)),
        drafted([11, 12]),
        scores([30, 12, 11]),
        visual=torch.zeros(0, D),
    )
    assert verdict.tokens == [30]
    assert "no picture" in verdict.notes["strict"]


def test_two_branches_are_ranked_apart_and_the_longer_wins():
    """Branch one (nodes 1, 2) has its least visual token second, branch two (3, 4) first."""
    tree = drafted([11, 12, 21, 22], (-1, 0, 1, 0, 3))
    told = scores([30, 31, 40, 22, 41], facing([0.9, 0.1, 0.3, 0.8]))
    verdict = judged(VisualVerifier(LvspecSettings(loose=0.5, shift=False)), tree, told)
    assert verdict.path == [0, 3, 4] and verdict.tokens == [21, 22, 41]
    assert verdict.relaxed == [True, False]
    even = judged(VisualVerifier(LvspecSettings(loose=1.0, shift=False)), tree, told)
    assert even.path == [0, 1, 2], "the first of equals"


def branch(exact: str, entropy: float | list[float] = 1.0) -> Branch:
    """'=' matches, 'x' does not."""
    n = len(exact)
    target = [i if c == "=" else i + 100 for i, c in enumerate(exact)]
    signal = [entropy] * n if isinstance(entropy, float) else entropy
    return Branch(range(1, n + 1), list(range(n)), target, signal, [True] * n)


def flags(verifier: EntropyVerifier, told: Branch) -> str:
    return "".join("1" if flag else "0" for flag in verifier.accepts(told))


@pytest.mark.parametrize(
    ("exact", "window", "expected"),
    [
        # Three matches behind the first mismatch; the last one has no window.
        ("=x=====x", 4, "11111110"),
        ("=x==x===", 4, "10110111"),  # the window of the first is broken by the second
        ("x===", 4, "0111"),  # just fits, refused all the same: it is among the last W
        ("x====", 4, "11111"),
        ("xx====", 4, "011111"),
        ("x=x=x=", 0, "111111"),  # the gate alone
        ("======", 4, "111111"),
    ],
)
def test_a_mismatch_stays_if_no_other_follows_in_the_window(exact: str, window: int, expected: str):
    assert flags(EntropyVerifier(FlySettings(gate=0.3, window=window)), branch(exact)) == expected


def test_a_sure_target_refuses_at_once():
    told = branch("=x=====", [1.0, 0.29, *[1.0] * 5])
    assert flags(EntropyVerifier(FlySettings(gate=0.3, window=4)), told) == "1011111"
    assert flags(EntropyVerifier(FlySettings(gate=0.29, window=4)), told) == "1111111"


def test_entropy_is_of_three_probabilities_where_the_token_was_judged():
    logits = torch.randn(3, V)
    tree = drafted([11, 12], (-1, 0, 0))
    entropy = EntropyVerifier(FlySettings()).acceptance_signal(
        Scores(logits, torch.zeros(3, D)), tree
    )
    top = logits[0].softmax(-1).sort(descending=True).values[:3]
    expected = -(top * top.log()).sum()
    assert entropy[1].item() == pytest.approx(expected.item(), abs=1e-6)
    assert entropy[2].item() == pytest.approx(expected.item(), abs=1e-6)

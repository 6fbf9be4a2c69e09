"""The loop on tables, whose distribution is known exactly: answers, bookkeeping, clocks, races."""

import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from specvl_demo import records
from specvl_demo.core.detokenizer import Detokenizer, TokenTexts
from specvl_demo.core.engine import Lane, Request, SharedPrefill, race
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import LaneStart, Policy, Prompt
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.policies import (
    BestFirst,
    BestFirstSettings,
    Chain,
    ChainSettings,
    StaticTree,
)
from specvl_demo.methods.sage import EntropyTree, SageSettings
from specvl_demo.options import Sampling
from specvl_demo.records import Begin, Round
from specvl_demo.report import tables
from tests.fakes import TABLE_PROMPT, TableDrafter, TableTarget
from tests.shared.refusals import refuses
from tests.shared.samplings import drawn_sampling
from tests.shared.tiny import ask, ids_of, parts, rounds_of, run_lane

V = 8
# After token i the target says i + 1, and 0 after the last.
CYCLE = torch.eye(V).roll(1, dims=1) * 9.0


def request(target: TableTarget, n: int = 10, **changes: object) -> Request:
    return ask(target, TABLE_PROMPT, max_new_tokens=n, **changes)


def chained(
    target: TableTarget, n: int, gamma: int, table: torch.Tensor = CYCLE, **changes: object
) -> list[Any]:
    """The records of a chain drafted by a table."""
    made = parts(TableDrafter(table), Chain(ChainSettings(gamma)))
    return run_lane(made, request(target, n, **changes))


RANKS = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0)]


def random_table(rng: random.Random, near: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [12, 12] after every token; near another table where one is given."""
    noise = torch.randn(12, 12, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    return noise * 1.5 if near is None else near + noise * rng.choice((0.1, 0.7, 3.0))


def random_policy(rng: random.Random) -> Policy:
    """Any shape of draft."""
    nodes, width, loops = rng.randint(2, 14), rng.randint(3, 5), rng.randint(2, 4)
    return rng.choice(
        (
            Chain(ChainSettings(rng.randint(1, 9), rng.choice((0.0, 0.3)))),
            StaticTree(RANKS[: rng.randint(1, len(RANKS))]),
            BestFirst(BestFirstSettings(nodes=nodes, width=width, loops=loops)),
            EntropyTree(SageSettings(growth="online", max_nodes=6, max_width=2, max_depth=3)),
            OneNode(),
        )
    )


def test_random_drafts_never_change_the_answer():
    """Random tables, drafters, trees, limits, ends and settings of sampling: the plain answer, to
    the token and the letter. An end is the last token and ends the lane, the limit holds, the cache
    holds the prompt and the answer but for its last token, records add up. Real models have
    tests/contract/test_lossless.py.
    """
    accepted, stops = 0, Counter[str]()
    for seed in range(300):
        rng = random.Random(seed)
        logits, eos = random_table(rng), frozenset(rng.sample(range(1, 12), rng.choice((0, 1, 3))))
        target, n = TableTarget(logits, eos=eos), rng.randint(1, 24)
        how = drawn_sampling(rng, rng.choice((0.0, 0.9, 1.4)), rng.choice((0.0, 0.35)))
        asked = request(target, n, sampling=how, full=False)
        plain = run_lane(parts(), asked)
        drafter = TableDrafter(random_table(rng, near=logits))
        made = replace(parts(drafter, random_policy(rng)), draws=rng.choice(("argmax", "shared")))
        found = run_lane(made, asked)
        said, stop = ids_of(found), found[-1].stop
        assert (said, stop) == (ids_of(plain), plain[-1].stop), seed
        (lane,), (plain_lane,) = records.gather_lanes(found), records.gather_lanes(plain)
        assert lane.text == plain_lane.text
        assert stop in ("stop", "eos" if said[-1] in eos else "length") and not eos & set(said[:-1])
        assert len(said) == n or (len(said) < n and stop in ("eos", "stop"))
        assert len(said) >= min(n, how.min_new_tokens) and (stop, how.ignore_eos) != ("eos", True)
        noted = tables.lane_row(lane).get("logprobs")
        assert noted == tables.lane_row(plain_lane).get("logprobs")
        assert not how.logprobs or [row["id"] for row in noted] == said
        stops[stop] += 1
        assert target.sessions[-1].decided == [0, 0, *said[:-1]]
        records.validate_trace(found)
        accepted += found[-1].totals.n_accepted
    assert min(stops.values()) > 10 and len(stops) == 3, stops
    assert accepted > 600  # equal answers would prove nothing if no draft were ever right


@pytest.mark.parametrize("policy", [Chain(ChainSettings(4)), StaticTree(RANKS)])
@pytest.mark.parametrize("temperature", [0.0, 1.1])
def test_drafts_are_processed_as_the_target_is(policy: Policy, temperature: float):
    """A drafter with the target's own logits loses no token by penalties, cuts or a bias."""
    table = random_table(random.Random(5))
    cuts = {"top_k": 5, "min_p": 0.02, "logit_bias": {4: 2.0}, "ignore_eos": True}
    how = Sampling(temperature, presence_penalty=1.5, frequency_penalty=0.7, **cuts)
    query = request(TableTarget(table, eos=frozenset({3})), 24, sampling=how)
    made = replace(parts(TableDrafter(table), policy), draws="shared")
    assert [r.n_accepted for r in rounds_of(run_lane(made, query))] == [4, 4, 4, 4, 3]


def test_log_probabilities_are_told_before_and_after_all_processing():
    how = Sampling(0.5, seed=1, top_k=2, presence_penalty=1.0, logprobs=3, logit_bias={0: 2.0})
    asked = request(TableTarget(CYCLE / 4), 3, sampling=how)
    (lane,) = records.gather_lanes(run_lane(parts(), asked))
    last, written = 0, []
    for row in tables.lane_row(lane)["logprobs"]:
        before, logits = (CYCLE / 4)[last].log_softmax(-1), (CYCLE / 4)[last].clone()
        logits[0] += 2.0
        logits[written] -= 1.0
        after = (
            (logits / 0.5).where(logits >= logits.topk(2).values[-1], -torch.inf).log_softmax(-1)
        )
        assert [entry["before"] for entry in row["top"]] == pytest.approx(
            before.topk(3).values.tolist()
        )
        for entry in (row, *row["top"]):
            assert entry["before"] == pytest.approx(float(before[entry["id"]]))
            drawn = float(after[entry["id"]])
            assert entry["after"] == (pytest.approx(drawn) if drawn > -torch.inf else None)
        last = row["id"]
        written.append(last)
    assert len({*written}) > 1


PIECES = ("a", "b", "ab", " ", "ba", "c a", "é", "")


def test_text_up_to_a_stop_string_is_never_taken_back():
    """Random pieces and stop strings: what was text after any token is the beginning of the final
    text, which ends where the first stop string begins once a token has completed one.
    """
    texts, cut = TokenTexts(lambda ids, keep_special=False: "".join(PIECES[i] for i in ids)), 0
    for seed in range(400):
        rng = random.Random(seed)
        tokens = rng.choices(range(len(PIECES)), k=rng.randint(1, 12))
        stops = [
            "".join(rng.choices("abc é", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))
        ]
        text, whole, reader = "", "", Detokenizer(texts, 0, stops)
        for at, token in enumerate(tokens, 1):
            text += reader.decode_next(token, last=at == len(tokens))
            whole += PIECES[token]
            places = [whole.find(stop) for stop in stops if stop in whole]
            assert reader.stopped == bool(places)
            assert whole.startswith(text) and not any(stop in text for stop in stops)
            if places:
                assert text == whole[: min(places)]
                cut += 1
                break
        else:
            assert text == whole
    assert 100 < cut < 300


def test_origins_path_and_candidates_line_up():
    wrong_after_3 = CYCLE.clone()
    wrong_after_3[3] = wrong_after_3[3].roll(2)
    first = chained(TableTarget(CYCLE), 6, 5, wrong_after_3)[1]
    assert [t.origin for t in first.tokens] == ["draft", "draft", "draft", "target"]
    assert first.path == [0, 1, 2, 3]
    assert first.tree.tokens == [0, 1, 2, 3, 6, 7]
    assert [c[0].id for c in first.candidates] == [t.id for t in first.tokens]
    for token, candidates in zip(first.tokens, first.candidates):
        assert candidates[0].prob == pytest.approx(
            float(CYCLE[token.id - 1].softmax(-1).max()), rel=1e-5
        )
        assert [c.prob for c in candidates] == sorted((c.prob for c in candidates), reverse=True)
    logp = CYCLE.log_softmax(-1)
    assert first.tree.target_logp[0] is None
    for node, parent in enumerate(first.tree.parent[1:], 1):
        expected = float(logp[first.tree.tokens[parent], first.tree.tokens[node]])
        assert first.tree.target_logp[node] == pytest.approx(expected, abs=1e-5)
        drafted = float(
            wrong_after_3.log_softmax(-1)[first.tree.tokens[parent], first.tree.tokens[node]]
        )
        assert first.tree.draft_logp[node] == pytest.approx(drafted, abs=1e-5)


@pytest.mark.parametrize("worst", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_end_the_run(worst: float):
    """Not an answer of the first token of the vocabulary, and nothing lossless."""
    damaged = CYCLE.clone()
    damaged[3] = worst
    with pytest.raises(FloatingPointError, match="logits that are not finite"):
        chained(TableTarget(damaged), 8, 2)


class Careless(Chain):
    """Names rows of the drafter for which it asked no draw."""

    def propose(self, *asked: Any) -> DraftTree:
        tree = super().propose(*asked)
        return replace(tree, rows=[9 if row < 0 else row + 9 for row in tree.rows or []])


def test_a_policy_that_names_rows_without_draws_is_refused():
    asked = request(TableTarget(CYCLE), sampling=Sampling(1.0))
    made = replace(parts(TableDrafter(CYCLE), Careless(ChainSettings(3))), draws="shared")
    refuses("once after every `extend`", run_lane, made, asked)


def test_light_records_keep_the_tree_and_leave_out_the_rest():
    first = chained(TableTarget(CYCLE), 6, 3, full=False)[1]
    assert first.candidates is None and first.tree.target_logp is None
    assert first.tree.draft_logp is not None and first.tree.tokens == [0, 1, 2, 3]


def test_a_cancelled_request_stops_before_its_next_round():
    calls = iter([False, False, True])
    target = TableTarget(CYCLE)
    found = run_lane(parts(), request(target, 10, cancelled=lambda: next(calls)))
    assert ids_of(found) == [1, 2]
    assert found[-1].stop == "cancelled" and found[-1].totals.n_rounds == 2


def costly(verify: float, **changes: float) -> TableTarget:
    return TableTarget(CYCLE, costs={"verify_s": verify, **changes})


def test_a_race_always_advances_the_lane_that_is_furthest_behind():
    clocks = {"slow": 1.0, "fast": 0.3, "mid": 0.7}
    lanes = [
        Lane(name, parts(), SharedPrefill(request(costly(cost), 20)))
        for name, cost in clocks.items()
    ]
    found = list(race(lanes))
    assert [r.lane for r in found if isinstance(r, Begin)] == list(clocks)
    now = {r.lane: r.before_s for r in found if isinstance(r, Begin)}
    running = set(clocks)
    for record in found[len(clocks) :]:
        if isinstance(record, Round):
            assert now[record.lane] == min(now[name] for name in running)
            now[record.lane] += record.seconds
        else:
            running.remove(record.lane)
    assert not running
    for name in clocks:
        alone = ids_of(run_lane(parts(), request(costly(1.0), 20)))
        assert ids_of(record for record in found if record.lane == name) == alone


class Looking(TableDrafter):
    """Looks at the prompt with eyes of its own."""

    eyes = TableTarget(CYCLE)

    def begin(self, start: LaneStart) -> None:
        start.encode(self.eyes)


def test_every_lane_is_charged_for_what_lanes_share(monkeypatch):
    """The second one too, whose drafter finds the prompt encoded."""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    shared = SharedPrefill(request(TableTarget(CYCLE)))
    lanes = [Lane(name, parts(Looking(CYCLE)), shared) for name in ("first", "second")]
    begins = [record for record in race(lanes) if isinstance(record, Begin)]
    assert [begin.draft_prefill_s for begin in begins] == [0.25, 0.25]


def test_a_prompt_refuses_what_cannot_be():
    refuses("end with text", Prompt, torch.tensor([1, 2]), torch.tensor([False, True]), {})
    refuses("at least two", Prompt, torch.tensor([1]), torch.tensor([False]), {})

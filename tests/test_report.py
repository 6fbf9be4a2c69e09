"""Folds over records, on records made by hand whose every number can be checked by eye."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from specvl_demo.records import Begin, End, Round, Token, Tree, fold
from specvl_demo.report import declared, metrics, spans, tables
from specvl_demo.report.metrics import Lane


def begin(method: str = "chain", **changes: object) -> Begin:
    fields = {
        "request": "r1",
        "lane": method,
        "method": method,
        "title": method.title(),
        "settings": {},
        "lossless": True,
        "pair": "pocket",
        "models": {"target": "t", "drafter": "d"},
        "sampling": {"temperature": 0.0, "seed": 7},
        "max_new_tokens": 64,
        "dtype": "float32",
        "device": "cpu",
        "versions": {"torch": "2.13.0"},
        "prompt": "What is here?",
        "n_prompt": 40,
        "n_visual": 36,
        "spans": [],
        "vision_s": 0.2,
        "prefill_s": 0.1,
        "draft_prefill_s": 0.0,
    }
    return Begin(**fields | changes)


def chain_round(
    index: int, clock: float, kept: str, drafted: str, own: str | None, lane: str = "chain", **more: object
) -> Round:
    """Drafted letters of which `kept` came through, then the target's own; a tenth of a second."""
    origins = {c: "draft" for c in kept}
    tokens = [Token(ord(c), c, origins[c]) for c in kept]
    if own is not None:
        tokens.append(Token(ord(own), own, "target"))
    tree = Tree([0, *map(ord, drafted)], list(range(-1, len(drafted))), ["", *drafted])
    seconds = {"draft_s": 0.02, "verify_s": 0.07, "commit_s": 0.006, "other_s": 0.004}
    return Round(lane, index, tokens, tree, list(range(len(kept) + 1)), **seconds | {"clock_s": clock} | more)


def chain_lane() -> Lane:
    rounds = [chain_round(0, 0.1, "abc", "abcd", "x"), chain_round(1, 0.2, "ef", "ef", "g")]
    return Lane(begin(), rounds, End("chain", "eos", fold(rounds)))


def ar_lane(text: str = "abcxefg") -> Lane:
    rounds = []
    for index, letter in enumerate(text):
        rounds.append(
            replace(
                chain_round(index, 0.08 * (index + 1), "", "", letter, "ar"),
                draft_s=0.0,
                verify_s=0.07,
                commit_s=0.006,
                other_s=0.004,
            )
        )
    return Lane(begin("ar"), rounds, End("ar", "eos", fold(rounds)))


def test_tau_counts_the_targets_own_token() -> None:
    found = metrics.measure(chain_lane())
    assert found.totals.tau == 3.5
    assert found.totals.accepted_per_round == 2.5
    assert found.acceptance == 5 / 6
    assert found.totals.decode_s == pytest.approx(0.2) and found.total_s == pytest.approx(0.5)
    assert found.totals.tokens_per_s == pytest.approx(35)
    assert found.tokens_per_s_total == pytest.approx(14)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["draft"] == pytest.approx(0.2)


def test_speedup_is_tau_over_rho_and_the_limit_lies_above_it() -> None:
    beside = metrics.compare(chain_lane(), ar_lane())
    assert beside.speedup_decode == pytest.approx(35 * 0.08)
    assert beside.speedup_decode == pytest.approx(3.5 / sum(beside.rho.values()))
    assert beside.limit == pytest.approx(3.5 / (0.09 / 0.08))
    assert beside.speedup_decode < beside.limit
    assert beside.speedup_total == pytest.approx(14 / (7 / (0.3 + 0.56)))
    assert beside.plausible and beside.why_slow() is None


def test_a_speedup_above_tau_is_called_a_mistake() -> None:
    fast = [replace(r, draft_s=0.0, verify_s=0.01, commit_s=0, other_s=0) for r in chain_lane().rounds]
    beside = metrics.compare(Lane(begin(), fast), ar_lane())
    assert not beside.plausible and "8.0 lies above τ 3.5" in beside.doubt()
    assert metrics.compare(chain_lane(), ar_lane()).doubt() is None


def test_pooled_speed_is_all_tokens_over_all_seconds() -> None:
    lane = chain_lane()
    slow = Lane(lane.begin, [replace(lane.rounds[0], verify_s=0.97)])
    pooled = metrics.measure([lane, slow])
    assert pooled.totals.tokens_per_s == pytest.approx(11 / 1.2)


@pytest.mark.parametrize(
    ("draft", "verify", "kept", "part"),
    [
        (0.30, 0.08, "abc", "drafting costs 3.8 plain steps"),
        (0.02, 0.40, "abc", "verifying 5 nodes costs 5.0 plain steps"),
        (0.07, 0.08, "", "too few drafted tokens"),
    ],
)
def test_why_slow_names_the_reason(draft: float, verify: float, kept: str, part: str) -> None:
    slow = replace(chain_round(0, 0.1, kept, "abcd", "x"), draft_s=draft, verify_s=verify)
    said = metrics.compare(Lane(begin(), [slow]), ar_lane()).why_slow()
    assert said is not None and part in said


@pytest.mark.parametrize(
    ("verify", "kept", "rest", "part"),
    [
        (0.159, "a", 0.002, "verifying 5 nodes costs 2.0 plain steps"),
        (0.079, "", 0.002, "too few drafted tokens are accepted (0.0 a round)"),
        (0.079, "", 0.012, "all that is not a model costs 0.1 plain steps"),
    ],
)
def test_what_costs_next_to_nothing_is_no_reason(verify: float, kept: str, rest: float, part: str) -> None:
    """Drafts that cost nothing, and models' forwards that nearly pay: prompt lookup."""
    seconds = {"draft_s": 0.0, "verify_s": verify, "commit_s": rest / 2, "other_s": rest / 2}
    slow = replace(chain_round(0, 0.1, kept, "abcd", "x"), **seconds)
    said = metrics.compare(Lane(begin(), [slow]), ar_lane()).why_slow()
    assert said is not None and part in said and "costs 0.0" not in said


def test_unknown_is_none_never_zero() -> None:
    empty = Lane(begin(), [])
    found = metrics.measure(empty)
    assert found.totals.tau is None and found.totals.tokens_per_s is None and found.acceptance is None
    assert set(found.shares.values()) == {None}
    beside = metrics.compare(empty, ar_lane())
    assert beside.speedup_decode is None and beside.limit is None and beside.why_slow() is None


def test_first_difference() -> None:
    assert metrics.first_difference([1, 2], [1, 2]) is None
    assert metrics.first_difference([1, 2], [1, 3]) == 1
    assert metrics.first_difference([1, 2], [1, 2, 3]) == 2


def test_pieces_follow_the_records_even_where_text_repeats() -> None:
    rounds = [chain_round(0, 0.1, "aa", "aab", "a"), chain_round(1, 0.2, "a", "a", "a")]
    found = spans.pieces(rounds)
    assert [piece.origin for piece in found] == ["draft", "draft", "target", "draft", "target"]
    assert [piece.reason for piece in found] == ["accepted", "accepted", "corrected", "accepted", "bonus"]
    assert "".join(piece.text for piece in found) == "aaaaa"
    assert spans.runs(rounds) == [("draft", "aa"), ("target", "a"), ("draft", "a"), ("target", "a")]


def test_a_character_of_several_tokens_is_one_piece() -> None:
    tokens = [Token(1, "", "draft"), Token(2, "", "relaxed"), Token(3, "é", "draft"), Token(4, "", "target")]
    tree = Tree([0, 1, 2, 3], [-1, 0, 1, 2])
    round_ = Round("l", 0, tokens, tree, [0, 1, 2, 3], 0, 0, 0, 0, 0)
    first, last = spans.pieces([round_])
    assert (first.start, first.stop, first.text, first.origin) == (0, 3, "é", "relaxed")
    assert (last.start, last.stop, last.text, last.origin) == (3, 4, "", "target")


def test_lane_rows_have_the_fields_of_the_command_line() -> None:
    chain, ar = tables.lane_rows([chain_lane(), ar_lane()])
    assert chain["text"] == "abcxefg" and chain["token_ids"] == [ord(c) for c in "abcxefg"]
    assert (chain["prefill_s"], chain["seed"], chain["stop"]) == (pytest.approx(0.3), 7, "eos")
    assert chain["identical_to_ar"] is True and chain["first_difference"] is None
    assert ar["speedup_decode"] == 1.0
    (other,) = tables.lane_rows([chain_lane()])
    assert other["speedup_decode"] is None and other["identical_to_ar"] is None
    _, differs = tables.lane_rows([ar_lane("abcxeh"), chain_lane()])
    assert differs["identical_to_ar"] is False and differs["first_difference"] == 5


def test_tables_leave_unknown_blank_and_escape_strangers() -> None:
    rows = [{"method": "<b>|x", "tau": None, "ok": True}, {"method": "=1+1", "tau": 2.34567}]
    markdown = tables.render(rows, ("method", "tau", "ok"), "markdown")
    assert "\\<b\\>\\|x" in markdown and "2.35" in markdown and "None" not in markdown
    assert len({line.count("|") - line.count("\\|") for line in markdown.splitlines()}) == 1
    table = list(csv.reader(io.StringIO(tables.render(rows, ("method", "tau", "ok"), "csv"))))
    assert table == [["method", "tau", "ok"], ["<b>|x", "", "yes"], ["'=1+1", "2.34567", ""]]
    assert json.loads(tables.render(rows, ("method", "tau"), "json"))[0] == {"method": "<b>|x", "tau": None}
    with pytest.raises(ValueError, match="markdown, csv or json"):
        tables.render(rows, ("tau",), "xml")  # type: ignore[arg-type]


def test_declarations_are_json() -> None:
    for method in declared.DECLARED:
        json.dumps(declared.declarations(method), allow_nan=False)
    assert declared.declarations("ar") == []


def test_reports_run_without_torch_and_gradio() -> None:
    code = (
        "import sys; import specvl_demo.report.declared, specvl_demo.report.trace, specvl_demo.report.spans;"
        "bad = {'torch', 'transformers', 'gradio', 'plotly', 'numpy', 'PIL'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

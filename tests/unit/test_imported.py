"""An answer of vLLM's server becomes a trace with its steps and nothing more."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from specvl_demo.__main__ import main
from specvl_demo.records import RecordError
from specvl_demo.report import trace
from specvl_demo.report.imported import UNKNOWN, from_vllm

TEXTS = ("A", " red", " star", ".", " So")
# As on the page "Per-Request Acceptance Metrics" of vLLM's documentation, level detailed.
RESPONSE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "Qwen/Qwen3-VL-8B-Instruct",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "A red star."},
            "finish_reason": "length",
            "logprobs": {"content": [{"token": text, "logprob": -0.1} for text in TEXTS]},
            "token_ids": [5, 6, 7, 8, 9],
        }
    ],
    "usage": {"prompt_tokens": 300, "completion_tokens": 5, "total_tokens": 305},
    "metrics": {
        "speculative_decoding": {
            "mean_acceptance_length": 2.5,
            "draft_acceptance_rate": 0.6,
            "acceptance_histogram": [0, 1, 1, 0],
            "num_spec_steps": 2,
            "num_accepted_draft_tokens": 3,
            "num_draft_tokens": 5,
            "num_spec_tokens": 3,
            "per_step_accepted": [1, 2],
            "per_step_drafted": [3, 2],
        }
    },
}


def changed(**steps: Any) -> dict[str, Any]:
    response = copy.deepcopy(RESPONSE)
    response["metrics"]["speculative_decoding"] |= steps
    return response


def test_one_command_makes_a_trace_that_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prefill's token, then a round a step; the last one is cut where the answer ends."""
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(RESPONSE))
    assert main(["trace", "import", str(source)]) == 0
    made = Path(capsys.readouterr().out.strip())
    assert made == tmp_path / "answer.trace.jsonl"
    (lane,), problems = trace.inspect(made)
    assert not problems
    assert lane.token_ids == [5, 6, 7, 8, 9] and lane.text == "A red star. So"
    origins = [[token.origin for token in one.tokens] for one in lane.rounds]
    assert origins == [["target"], ["draft", "target"], ["draft", "draft"]]
    trees = [one.tree.tokens for one in lane.rounds]
    assert trees == [[UNKNOWN], [5, 6, UNKNOWN, UNKNOWN], [7, 8, 9]]
    assert lane.end is not None and lane.end.stop == "length"
    assert (lane.end.totals.n_drafted, lane.end.totals.n_accepted) == (5, 3)
    assert main(["trace", "show", str(made)]) == 0
    shown = capsys.readouterr().out
    assert "A[ red] star[. So]" in shown
    assert "sampling unknown" in shown and " 0 " not in shown.split("| imported")[1][:40]


def test_what_the_answer_does_not_hold_stays_unknown() -> None:
    """Also a token that no step accounts for, which is a round by itself."""
    bare = changed(per_step_accepted=[1], per_step_drafted=[3])
    del bare["choices"][0]["logprobs"], bare["choices"][0]["token_ids"]
    _, *rounds, end = from_vllm(json.dumps(bare))
    assert [len(r.tokens) for r in rounds] == [1, 1, 1, 2]
    assert {t.id for r in rounds for t in r.tokens} == {UNKNOWN}
    assert {t.text for r in rounds for t in r.tokens} == {""}
    assert end.totals.tokens_per_s is None


@pytest.mark.parametrize(
    ("response", "part"),
    [
        ("[]", "not a response"),
        ("{", "not a response"),
        ({**RESPONSE, "metrics": None}, "detailed"),
        (changed(per_step_accepted=None), "detailed"),
        (changed(per_step_accepted=[4, 2]), "more tokens than it drafted"),
        (changed(per_step_accepted=[1]), "more tokens than it drafted"),
        (changed(per_step_accepted=[3, 3, 3], per_step_drafted=[3, 3, 3]), "fewer than its steps"),
        ({**RESPONSE, "choices": []}, "0 choices"),
    ],
)
def test_an_answer_that_tells_too_little_is_refused(response: Any, part: str) -> None:
    with pytest.raises(RecordError, match=part):
        from_vllm(response if isinstance(response, str) else json.dumps(response))

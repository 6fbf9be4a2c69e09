"""An answer of vLLM with its speculative metrics as a trace: what was drafted and accepted, round
by round.

Given one response of its OpenAI-compatible server, started with `--per-request-spec-decode-metrics
detailed` (vllm-project/vllm, pull request 48915). Has only counts; what the response lacks
(rejected tokens, probabilities, seconds) stays unknown in the trace too. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from specvl_demo.records import (
    MAX_NEW_TOKENS,
    Begin,
    End,
    Record,
    RecordError,
    Round,
    Stop,
    Token,
    Tree,
    fold,
)

UNKNOWN = -1
"""The id of a token that the response does not name."""
ASK = "start vLLM with --per-request-spec-decode-metrics detailed"


class _Steps(Struct):
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None
    num_spec_tokens: int | None = None


class _Metrics(Struct):
    speculative_decoding: _Steps | None = None


class _Said(Struct):
    token: str = ""


class _Logprobs(Struct):
    content: list[_Said] | None = None


class _Choice(Struct):
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Response(Struct):
    choices: list[_Choice]
    usage: _Usage
    metrics: _Metrics | None = None
    id: str = "vllm"
    model: str = "unknown"


def from_vllm(text: str) -> list[Record]:
    """Return the records of one response, as one lane; RecordError with a sentence if it lacks
    data.

    The first token comes from the prefill, before any draft: it is a separate round, which τ counts
    and vLLM's mean does not. A step that accepted k tokens emits k + 1; the last may be cut short.
    Tokens that no step accounts for form rounds of one after the first.
    """
    try:
        response = msgspec.json.decode(text, type=_Response)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as fault:
        raise RecordError(f"is not a response of vLLM's server: {fault}") from None
    steps = response.metrics and response.metrics.speculative_decoding
    if not steps or steps.per_step_accepted is None or steps.per_step_drafted is None:
        raise RecordError(f"has no metrics.speculative_decoding.per_step_accepted: {ASK}")
    n = response.usage.completion_tokens
    if not 1 <= n <= MAX_NEW_TOKENS or response.usage.prompt_tokens < 1 or not response.choices:
        raise RecordError(
            f"has {n} completion tokens, {response.usage.prompt_tokens} prompt tokens and"
            f" {len(response.choices)} choices; a trace must have 1 to {MAX_NEW_TOKENS} tokens of"
            " one answer"
        )
    counts = list(zip(steps.per_step_accepted, steps.per_step_drafted, strict=False))
    if len(steps.per_step_accepted) != len(steps.per_step_drafted) or not all(
        0 <= accepted <= drafted for accepted, drafted in counts
    ):
        raise RecordError(
            "has a step that accepted more tokens than it drafted, or a step with only one of the"
            " two counts"
        )
    rest = n - 1 - sum(accepted + 1 for accepted, _ in counts)
    # The last step may have been cut at the end of the answer, but earlier ones may not.
    if rest < -max((accepted for accepted, _ in counts[-1:]), default=0):
        raise RecordError(f"has {n} completion tokens, fewer than its steps emitted")
    rounds = list(_rounds(response, [(0, 0)] * (1 + max(rest, 0)) + counts))
    return [_begin(response, steps), *rounds, _end(response, rounds)]


def _rounds(response: _Response, counts: list[tuple[int, int]]) -> Iterator[Round]:
    choice, n = response.choices[0], response.usage.completion_tokens
    texts = [one.token for one in choice.logprobs.content or ()] if choice.logprobs else []
    ids = choice.token_ids or []
    # Either all tokens are named, or none is.
    texts = texts if len(texts) == n else [""] * n
    ids = ids if len(ids) == n else [UNKNOWN] * n
    at, root = 0, UNKNOWN
    for index, (accepted, drafted) in enumerate(counts):
        stop = min(at + accepted + 1, n)
        kept = min(accepted, stop - at)
        missing = [UNKNOWN] * (drafted - kept)
        yield Round(
            lane=response.id,
            index=index,
            tokens=[
                Token(ids[i], texts[i], "draft" if i - at < accepted else "target")
                for i in range(at, stop)
            ],
            tree=Tree(
                tokens=[root, *ids[at : at + kept], *missing],
                parent=list(range(-1, drafted)),
                texts=["", *texts[at : at + kept], *[""] * len(missing)],
            ),
            path=list(range(kept + 1)),
            draft_s=0.0,
            verify_s=0.0,
            commit_s=0.0,
            other_s=0.0,
            clock_s=0.0,
        )
        at, root = stop, ids[stop - 1]


def _begin(response: _Response, steps: _Steps) -> Begin:
    return Begin(
        request=response.id,
        lane=response.id,
        method="imported",
        title=f"vLLM, {response.model}",
        settings={"num_spec_tokens": steps.num_spec_tokens},
        lossless=True,
        pair=response.model,
        models={"target": response.model, "drafter": None},
        sampling={},
        max_new_tokens=response.usage.completion_tokens,
        dtype="",
        device="",
        versions={},
        prompt="",
        n_prompt=response.usage.prompt_tokens,
        n_visual=0,
        spans=[],
        vision_s=0.0,
        prefill_s=0.0,
        draft_prefill_s=0.0,
        exactness="as vLLM guarantees; its answer was not compared with plain decoding here",
    )


def _end(response: _Response, rounds: list[Round]) -> End:
    reason = response.choices[0].finish_reason
    stop: Stop = {"stop": "eos", "length": "length"}.get(reason or "", "cancelled")  # type: ignore[assignment]
    return End(response.id, stop, fold(rounds))

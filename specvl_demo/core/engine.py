"""The generation loop: lanes that draft, verify and commit round by round, and races between them.

Given a target, a prompt and the parts of a method, yields records. Autoregressive decoding is a
lane whose tree has one node. A lane's clock counts only its own compute; a race always advances the
lane that is furthest behind. Knows tokens, seconds and records; nothing of pictures or files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from specvl_demo.core.adjusted import AdjustedDrafter, adjust_scores
from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.recorder import Recorder
from specvl_demo.core.sampling import Sampler, warp_logits
from specvl_demo.core.types import (
    AuxRequest,
    Drafter,
    Encoded,
    LaneStart,
    Policy,
    Prefill,
    Prompt,
    Target,
    Verifier,
    VisionEncoder,
)
from specvl_demo.options import NEW_TOKENS, Sampling
from specvl_demo.records import Begin, Chart, End, Prefix, Record, Round, Stop, Totals, ViewSeen

NOT_FINITE = (
    "{name} returned logits that are not finite: its weights are damaged, or the dtype is too"
    " narrow for it. Try --dtype float32, or load the weights again."
)


@dataclass(frozen=True)
class Request:
    """One question to one target, shared by all methods that answer it.

    full: Whether candidates and the target's log-probabilities are recorded too.
    cancelled: Called before every round.
    """

    id: str
    prompt: Prompt
    target: Target
    token_texts: TokenTexts
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = NEW_TOKENS.default
    full: bool = True
    pair: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    cancelled: Callable[[], bool] = bool


@dataclass(frozen=True)
class Parts:
    """One row of the method table, assembled for one lane.

    Attributes:
        draws: What is drafted at a temperature above 0: the drafter's token under the target's
            noise ("shared"), or its likeliest ("argmax").
        chosen: What was chosen for this machine of the settings that leave it open.
    """

    method: str
    title: str
    lossless: bool
    settings: Mapping[str, Any]
    drafter: Drafter
    policy: Policy
    verifier: Verifier
    draws: Literal["shared", "argmax"] = "argmax"
    charts: Sequence[Chart] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)


class SharedPrefill:
    """What the lanes of a request compute once: encodings by model, prefills by what they keep.

    A prefill holds keys and values of the whole prompt; it is dropped once its lanes have begun.
    like: What computed the encodings of the same prompt.
    """

    def __init__(self, request: Request, like: SharedPrefill | None = None) -> None:
        self.request = request
        self._encoded: dict[int, Encoded] = like._encoded if like else {}
        self._prefills: dict[AuxRequest, Prefill] = {}
        self._reserved: Counter[AuxRequest] = Counter()

    def reserve(self, aux_request: AuxRequest) -> None:
        """Have the prefill with these aux states kept until one more lane releases it."""
        self._reserved[aux_request] += 1

    def release(self, aux_request: AuxRequest) -> None:
        """End a lane's reservation, once it has its own copy; the last one frees the prefill."""
        self._reserved[aux_request] -= 1
        if not self._reserved[aux_request]:
            self._prefills.pop(aux_request, None)

    def encoded_prompt(self, encoder: VisionEncoder) -> Encoded:
        """Return the prompt encoded for this model's decoder."""
        # Keyed by decoder: target and drafter may wrap one model, or share all but some layers.
        key = id(getattr(encoder, "encodes_like", encoder.decoder))
        if key not in self._encoded:
            self._encoded[key] = encoder.encode(self.request.prompt)
        return self._encoded[key]

    def prefill(self, aux_request: AuxRequest) -> Prefill:
        """Return the target's pass over the prompt, with what `aux_request` requests.

        One pass per request: a lane that requests nothing is not charged for what others keep.
        """
        if aux_request not in self._prefills:
            target = self.request.target
            self._prefills[aux_request] = target.prefill(self.encoded_prompt(target), aux_request)
        return self._prefills[aux_request]


class Lane:
    """One method answering one request. Call `begin` once, `step` until `done`, `end` once.

    max_new_tokens: At most the request's; None for as many.
    """

    def __init__(
        self, name: str, parts: Parts, shared: SharedPrefill, max_new_tokens: int | None = None
    ) -> None:
        self.name = name
        self.parts = parts
        self.clock = 0.0
        self.before = 0.0
        self.totals = Totals()
        self.stop: Stop | None = None
        self._shared = shared
        self._request = shared.request
        self._remaining = min(max_new_tokens or NEW_TOKENS.high, shared.request.max_new_tokens)
        shared.reserve(parts.drafter.aux_request)

    @property
    def done(self) -> bool:
        """Whether the answer is complete or was cancelled."""
        return self.stop is not None

    @property
    def now(self) -> float:
        """Seconds of compute charged to this lane so far, prefill included."""
        return self.before + self.clock

    @torch.inference_mode()
    def begin(self) -> Begin:
        """Prefill target and drafter and open the session."""
        request = self._request
        parts = self.parts
        shared = self._shared
        target, prompt = request.target, request.prompt
        # 1. The target reads the prompt, once for all lanes that request the same of it.
        encoded = shared.encoded_prompt(target)
        prefill = shared.prefill(parts.drafter.aux_request)
        borrowed = 0.0

        def encode(encoder: VisionEncoder) -> Encoded:
            nonlocal borrowed
            started = time.perf_counter()
            seen = shared.encoded_prompt(encoder)
            if seen is not encoded:
                borrowed += seen.seconds - (time.perf_counter() - started)
            return seen

        # 2. The lane opens a session on a copy, with room for the whole answer also in a warm-up:
        # steps that it captures then serve the race.
        room = request.max_new_tokens
        session = target.open(prefill, room, parts.policy.max_nodes, parts.drafter.aux_request)
        shared.release(parts.drafter.aux_request)
        drawn = parts.draws != "argmax" and not request.sampling.greedy
        start = LaneStart(
            prompt=prompt,
            encoded=encoded,
            prefill=prefill,
            encode=encode,
            vocabulary=target.vocabulary,
            sampling=request.sampling,
            max_new_tokens=room,
            max_nodes=max(parts.policy.max_nodes, parts.policy.max_fed),
            session=session,
            growth=None if drawn or request.sampling.adjusts else parts.policy.growth(),
        )
        # 3. Its parts read the prompt too, on the clock.
        watch = target.stopwatch()
        watch.start()
        parts.verifier.begin(start)
        parts.drafter.begin(start)
        watch.lap("draft")
        parts.drafter.prepare(start)
        # A lane is charged in full for what it takes from the lanes' common store.
        draft_prefill_s = max(0.0, watch.read()["draft"] + borrowed)
        # 4. What its rounds need.
        self._watch, self._session = watch, session
        self._device = target.decoder.device
        self._eos = target.vocabulary.eos
        # The draws of a place do not depend on whether what is before it was given.
        ids = prompt.ids.tolist()
        n_prefix = len(prompt.prefix)
        self._sampler = Sampler(request.sampling, self._device, ids, n_prefix, self._eos)
        self._draws = self._sampler if drawn else None
        self._root = int(prompt.ids[-1])
        stop = request.sampling.stop
        self._recorder = Recorder(request.token_texts, self._root, request.full, stop)
        self.before = encoded.seconds + prefill.seconds + draft_prefill_s
        return self._begin_record(encoded.seconds, prefill.seconds, draft_prefill_s)

    def _begin_record(self, vision_s: float, prefill_s: float, draft_prefill_s: float) -> Begin:
        """Return the record of what was asked, of whom, and what was spent before the rounds."""
        request, parts = self._request, self.parts
        target, prompt = request.target, request.prompt
        return Begin(
            request=request.id,
            lane=self.name,
            method=parts.method,
            title=parts.title,
            settings=dict(parts.settings),
            chosen=dict(parts.chosen),
            lossless=parts.lossless,
            pair=request.pair,
            models={"target": target.name, "drafter": parts.drafter.name},
            sampling=request.sampling.record,
            max_new_tokens=request.max_new_tokens,
            dtype=str(target.decoder.dtype).removeprefix("torch."),
            device=str(self._device),
            versions=dict(request.versions),
            prompt=prompt.text,
            n_prompt=len(prompt),
            n_visual=int(prompt.visual.sum()),
            spans=list(prompt.spans),
            vision_s=vision_s,
            prefill_s=prefill_s,
            draft_prefill_s=draft_prefill_s,
            seen=self._seen_by_views(),
            charts=list(parts.charts),
            exactness=target.exactness(parts.policy.max_nodes) if parts.lossless else "lossy",
            prefix=self._prefix(),
        )

    def _prefix(self) -> Prefix:
        """Return what the answer had to begin with."""
        prompt = self._request.prompt
        ids = prompt.prefix
        if not ids:
            return Prefix()
        before = int(prompt.ids[-len(ids) - 1])
        return Prefix(list(ids), self._request.token_texts.text_after(before, ids))

    def _seen_by_views(self) -> list[ViewSeen]:
        """Return what every view of the drafter saw."""
        text_after = self._request.token_texts.text_after
        return [
            ViewSeen(view, len(index), index.tolist(), text_after(self._root, ids) if ids else "")
            for view, (index, ids) in self.parts.drafter.seen_by_view().items()
        ]

    @torch.inference_mode()
    def step(self) -> Round | None:
        """Run one round; return None if the request was cancelled."""
        request = self._request
        if request.cancelled():
            self.stop = "cancelled"
            return None
        drafter = self.parts.drafter
        policy = self.parts.policy
        watch = self._watch
        session = self._session
        sampler = self._sampler
        sampling = request.sampling
        watch.start()
        # Filled by the device: copying from the host would wait for it.
        root = torch.full((1,), self._root, device=self._device)
        asked_drafter = AdjustedDrafter(drafter, sampler) if sampling.adjusts else drafter
        tree = policy.propose(asked_drafter, root, self._remaining - 1, self._draws)
        if len(tree) > policy.max_nodes:
            raise ValueError(
                f"the policy proposed {len(tree)} nodes; its max_nodes is {policy.max_nodes}"
            )
        watch.lap("draft_s")
        raw = session.score(tree)
        scores = adjust_scores(raw, tree, sampler) if sampling.adjusts else raw
        verdict = self.parts.verifier.verify(tree, scores, sampler)
        watch.lap("verify_s")
        emitted = self._cut_at_end(verdict.tokens)
        path = verdict.path[: len(emitted)]
        watch.lap("other_s")
        # What only the record needs is not charged to any clock.
        notes = {**tree.notes, **verdict.notes, **drafter.round_notes()}
        asked = self._recorder.read_drafter(drafter, tree, path, request.prompt.visual)
        watch.lap(None)
        session.commit(path)
        if not self.done:
            drafter.commit(tree, verdict, raw)
            policy.update(tree, verdict)
        watch.lap("commit_s")
        # Waits for all of the round, so that the clock's times are there.
        written = self._recorder.round_fields(tree, scores, verdict, emitted, asked, self.done)
        laps: dict[str, Any] = watch.read()
        self.clock += sum(laps.values())
        if written is None:
            raise FloatingPointError(NOT_FINITE.format(name=request.target.name))
        fields, more = written
        notes |= more
        if request.full and not sampling.greedy:
            rows = [-1 if tree.rows is None else tree.rows[node] for node in path]
            notes["draws"] = sampler.describe_draws(scores.logits[path], emitted, rows)
        if sampling.logprobs:
            drawn = warp_logits(scores.logits[path], sampling)
            given = emitted, raw.logits[path], drawn, sampling.logprobs
            notes["logprobs"] = self._recorder.log_probabilities(*given)
        sampler.advance(emitted)
        round_ = Round(
            lane=self.name,
            index=self.totals.n_rounds,
            clock_s=self.clock,
            notes=notes,
            **fields,
            **laps,
        )
        self.totals = self.totals.plus_round(round_)
        return round_

    @torch.inference_mode()
    def end(self) -> End:
        """Close the lane; if it is not done, it counts as cancelled."""
        self.stop = self.stop or "cancelled"
        return End(self.name, self.stop, self.totals, self._request.target.peak_bytes())

    def _cut_at_end(self, tokens: Sequence[int]) -> list[int]:
        """Return a round's tokens up to the first end of sequence or stop string and within
        max_new_tokens.
        """
        emitted = list(tokens[: self._remaining])
        sampling = self._request.sampling
        end = next((i for i, token in enumerate(emitted) if token in self._eos), None)
        if end is not None:
            emitted = emitted[: end + 1]
            self.stop = "eos"
        elif len(emitted) == self._remaining:
            self.stop = "length"
        if sampling.stop:
            first = sampling.min_new_tokens - self.totals.n_tokens
            emitted = emitted[: self._recorder.read_texts(emitted, self.done, first)]
            self.stop = "stop" if self._recorder.stopped else self.stop
        self._remaining -= len(emitted)
        self._root = emitted[-1]
        return emitted


def race(lanes: Sequence[Lane]) -> Iterator[Record]:
    """Run lanes side by side: the one whose clock is furthest behind is always next."""
    for lane in lanes:
        yield lane.begin()
    running = list(lanes)
    while running:
        lane = min(running, key=lambda lane: lane.now)
        round_ = lane.step()
        if round_ is not None:
            yield round_
        if lane.done:
            running.remove(lane)
            yield lane.end()

"""The one loop: lanes that draft, verify and commit round by round, and races between them.

Given a target, a prompt and the parts of a method, gives records. Autoregressive decoding is a lane whose
tree has one node. A lane's own clock is its compute time alone; a race always advances the lane that is
furthest behind. Knows tokens, seconds and records; nothing of pictures, files or pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from specvl_demo.core.memory import Memory
from specvl_demo.core.recorder import Recorder
from specvl_demo.core.sampling import Sampler
from specvl_demo.core.text import Lexicon
from specvl_demo.core.types import (
    Capture,
    Drafter,
    Encoded,
    Eyes,
    Policy,
    Prefill,
    Prompt,
    Sampling,
    Start,
    Target,
    Verifier,
)
from specvl_demo.records import Begin, End, Record, Round, Seen, Stop, Totals


@dataclass(frozen=True)
class Request:
    """One question to one target, whatever methods answer it.

    detail "light" leaves out candidates and the target's log-probabilities. cancelled is asked before every
    round. memory: of the conversation it belongs to; read when lanes begin, written when they end.
    """

    id: str
    prompt: Prompt
    target: Target
    lexicon: Lexicon
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 160
    detail: Literal["full", "light"] = "full"
    pair: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    cancelled: Callable[[], bool] = bool
    memory: Memory | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is at least 1, got {self.max_new_tokens}")


@dataclass(frozen=True)
class Parts:
    """One row of the method table, assembled for one lane.

    ahead: begins work that needs the prompt alone and may run while the target prefills (a captioner's);
    whoever wants its result waits for it.
    """

    method: str
    title: str
    lossless: bool
    settings: Mapping[str, Any]
    drafter: Drafter
    policy: Policy
    verifier: Verifier
    drafter_model: str | None = None
    ahead: Callable[[Prompt], None] | None = None

    @property
    def key(self) -> str:
        """The same for two lanes that draft alike."""
        return f"{self.method} {sorted(self.settings.items())}"


class Shared:
    """What the lanes of a request compute once: encodings by model, prefills by capture."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._encoded: dict[int, Encoded] = {}
        self._prefills: dict[Capture, Prefill] = {}

    def encoded(self, eyes: Eyes | Target) -> Encoded:
        """The prompt as this model's decoder gets it."""
        # By decoder: a target and the eyes of a drafter may be two faces of one model.
        key = id(eyes.decoder)
        if key not in self._encoded:
            prompt, memory = self.request.prompt, self.request.memory
            before = None if memory is None else memory.encoded.get(eyes.decoder)
            self._encoded[key] = eyes.encode(prompt, before=before)
            if memory is not None:
                memory.encoded[eyes.decoder] = self._encoded[key]
        return self._encoded[key]

    def prefill(self, capture: Capture) -> Prefill:
        """The target's pass over the prompt, keeping what `capture` asks for.

        One pass per capture, not one for all: a lane that asks for nothing is not charged for what others
        keep.
        """
        if capture not in self._prefills:
            self._prefills[capture] = self.prefill_apart(capture)
        return self._prefills[capture]

    def prefill_apart(self, capture: Capture) -> Prefill:
        """A pass of one lane's own: it computes something else meanwhile, and nobody else shall wait for
        that."""
        target, memory = self.request.target, self.request.memory
        before = None if memory is None else memory.past(capture.layers)
        return target.prefill(self.encoded(target), capture, before=before)


class Lane:
    """One method answering one request. Call `begin` once, `step` until `done`, `end` once."""

    def __init__(self, name: str, parts: Parts, shared: Shared) -> None:
        self.name = name
        self.parts = parts
        self.clock = 0.0
        self.before = 0.0
        self.totals = Totals()
        self.stop: Stop | None = None
        self._shared = shared
        self._request = shared.request
        self._remaining = shared.request.max_new_tokens
        self._said: list[int] = []

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
        """Prefill target and drafter, open the session."""
        request, parts, shared = self._request, self.parts, self._shared
        target, prompt = request.target, request.prompt
        encoded = shared.encoded(target)
        if parts.ahead is None:
            prefill = shared.prefill(parts.drafter.capture)
        else:
            parts.ahead(prompt)
            prefill = shared.prefill_apart(parts.drafter.capture)
        borrowed = 0.0

        def encode(eyes: Eyes) -> Encoded:
            nonlocal borrowed
            started = time.perf_counter()
            seen = shared.encoded(eyes)
            if seen is not encoded:
                borrowed += seen.seconds - (time.perf_counter() - started)
            return seen

        start = Start(
            prompt=prompt,
            encoded=encoded,
            prefill=prefill,
            encode=encode,
            target_decoder=target.decoder,
            vocabulary=target.vocabulary,
            sampling=request.sampling,
            max_new_tokens=request.max_new_tokens,
            max_nodes=parts.policy.max_nodes,
            before=None if request.memory is None else request.memory.drafted.get(parts.key),
        )
        watch = target.stopwatch()
        watch.start()
        parts.verifier.begin(start)
        parts.drafter.begin(start)
        watch.lap("draft")
        # What was taken from the lanes' common store costs this lane as much as if it had made it itself.
        draft_prefill_s = max(0.0, watch.read()["draft"] + borrowed)
        self._watch = watch
        self._session = target.open(
            prefill,
            request.max_new_tokens,
            parts.policy.max_nodes,
            parts.drafter.capture,
            remember=request.memory is not None,
        )
        device = target.decoder.device
        self._device = device
        self._eos = target.vocabulary.eos
        self._sampler = Sampler(request.sampling, request.max_new_tokens + parts.policy.max_nodes, device)
        self._root = int(prompt.ids[-1])
        self._recorder = Recorder(request.lexicon, self._root, request.detail == "full")
        self.before = encoded.seconds + prefill.seconds + draft_prefill_s
        return Begin(
            request=request.id,
            lane=self.name,
            method=parts.method,
            title=parts.title,
            settings=dict(parts.settings),
            lossless=parts.lossless,
            pair=request.pair,
            models={"target": target.name, "drafter": parts.drafter_model},
            sampling=vars(request.sampling).copy(),
            max_new_tokens=request.max_new_tokens,
            dtype=str(target.decoder.dtype).removeprefix("torch."),
            device=str(device),
            versions=dict(request.versions),
            prompt=prompt.text,
            n_prompt=len(prompt),
            n_visual=int(prompt.visual.sum()),
            spans=list(prompt.spans),
            vision_s=encoded.seconds,
            prefill_s=prefill.seconds,
            draft_prefill_s=draft_prefill_s,
            seen=self._seen(),
        )

    def _seen(self) -> list[Seen]:
        """What every view of the drafter saw."""
        drafter, lexicon = self.parts.drafter, self._request.lexicon
        words = {view: lexicon.after(self._root, tuple(ids)) for view, ids in drafter.words().items()}
        return [
            Seen(view, len(index), index.tolist(), words.get(view, ""))
            for view, index in drafter.seen().items()
        ]

    @torch.inference_mode()
    def step(self) -> Round | None:
        """One round; None when the request was cancelled instead."""
        if self._request.cancelled():
            self.stop = "cancelled"
            return None
        drafter, policy, watch = self.parts.drafter, self.parts.policy, self._watch
        watch.start()
        root = torch.tensor([self._root], device=self._device)
        tree = policy.grow(drafter, root, self._remaining - 1)
        watch.lap("draft_s")
        scores = self._session.score(tree)
        verdict = self.parts.verifier.judge(tree, scores, self._sampler)
        watch.lap("verify_s")
        kept = self._cut(verdict.tokens)
        path = verdict.path[: len(kept)]
        said = self._recorder.ask(drafter, tree, path)
        notes = {**tree.notes, **verdict.notes, **drafter.notes()}
        watch.lap("other_s")
        self._session.commit(path)
        if not self.done:
            drafter.commit(tree, verdict, scores)
            policy.learn(tree, verdict)
            self._sampler.advance(len(kept))
        watch.lap("commit_s")
        written = self._recorder.write(tree, scores, verdict, kept, said, last=self.done)
        watch.lap("other_s")
        laps = watch.read()
        self.clock += sum(laps.values())
        round_ = Round(
            lane=self.name,
            index=self.totals.n_rounds,
            clock_s=self.clock,
            notes=notes,
            **written._asdict(),
            **laps,
        )
        self.totals = self.totals.plus(round_)
        return round_

    def end(self, stop: Stop | None = None, message: str | None = None) -> End:
        """Close the lane; stop and message say why where the loop did not decide it."""
        self.stop = stop or self.stop or "cancelled"
        if self._request.memory is not None:
            self._remember(self._request.memory)
        return End(self.name, self.stop, self.totals, self._request.target.peak_bytes(), message)

    @torch.inference_mode()
    def _remember(self, memory: Memory) -> None:
        """Leave what the next question of this conversation can go on from; on nobody's clock."""
        prompt, parts, layers = self._request.prompt, self.parts, self.parts.drafter.capture.layers
        said = torch.tensor([int(prompt.ids[-1]), *self._said])
        # All lossless lanes say the same, and it is most likely their answer that is asked about.
        if parts.lossless or not memory.holds(layers, self._request.id):
            ids = torch.cat((prompt.ids[:-1].cpu(), said))
            memory.keep(layers, self._session.past(self._request.id, ids))
        drafted = parts.drafter.past(said.to(self._device))
        if drafted is not None:
            memory.drafted[parts.key] = drafted
        memory.ran.add(parts.key)

    def _cut(self, tokens: Sequence[int]) -> list[int]:
        """What of a round's tokens is kept: up to the first end of sequence, never more than asked for."""
        kept = list(tokens[: self._remaining])
        end = next((i for i, token in enumerate(kept) if token in self._eos), None)
        if end is not None:
            kept = kept[: end + 1]
            self.stop = "eos"
        elif len(kept) == self._remaining:
            self.stop = "length"
        self._remaining -= len(kept)
        self._said += kept
        self._root = kept[-1]
        return kept


def race(lanes: Sequence[Lane]) -> Iterator[Record]:
    """Run lanes side by side: always the one whose own clock is furthest behind; the first of equals."""
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

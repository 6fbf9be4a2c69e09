"""`generate` and `race`: one question, answered by one method or by several side by side.

Everything that can be refused is refused before torch is imported; the answer streams while it is made.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from specvl_demo import methods, pairs, records, registry
from specvl_demo.cli import progress
from specvl_demo.cli.parse import Refused
from specvl_demo.media import Clip, MediaError, Picture, load_media
from specvl_demo.methods import Choice
from specvl_demo.pairs import Pair
from specvl_demo.records import Record, Round
from specvl_demo.report import tables
from specvl_demo.report.metrics import Lane, compare, gather


def generate(options: argparse.Namespace) -> int:
    """One method; prints its answer as it comes, then its numbers, or one JSON document."""
    lanes = _run(options, [options.method])
    if options.json:
        _print_json(_first(tables.lane_row(lanes[0]), tables.GENERATE_FIELDS))
    else:
        _say_numbers(lanes)
    return _code(lanes)


def race(options: argparse.Namespace) -> int:
    """Several methods, the plain model first; prints all answers and a table, or one JSON document."""
    lanes = _run(options, _names(options))
    if options.json:
        fields = (*tables.GENERATE_FIELDS, *tables.RACE_FIELDS)
        _print_json({"lanes": [_first(row, fields) for row in tables.lane_rows(lanes)]})
    else:
        _say_numbers(lanes)
    return _code(lanes)


def pick(
    names: Sequence[str], settings: Sequence[tuple[str, str]], pair: Pair, temperature: float
) -> list[Choice]:
    """Each method with its settings, checked against the pair; Refused with a sentence.

    `METHOD.KEY=VALUE` reaches one method; a bare KEY all of them that have it, and at least one must.
    """
    chosen, used = [], set()
    try:
        for name in names:
            known = {*methods.SLOTS, "preset", *registry.choose(pair, name, {}, 0.0).params}
            mine: dict[str, str] = {}
            for key, value in settings:
                owner, dot, inner = key.rpartition(".")
                if dot and owner not in names:
                    raise Refused(f"--set {key}: {owner} does not run here; running: {', '.join(names)}.")
                if owner == name or (not dot and (len(names) == 1 or inner in known)):
                    mine[inner] = value
                    used.add(key)
            chosen.append(registry.choose(pair, name, mine, temperature))
    except ValueError as reason:
        raise Refused(str(reason)) from None
    for key, _ in settings:
        if key not in used:
            raise Refused(f"--set {key}: none of {', '.join(names)} has this parameter.")
    return chosen


def load_options(options: argparse.Namespace) -> registry.Options:
    """How weights are to be brought up."""
    return registry.Options(options.dtype, options.quantised, options.allow_pickle)


def find_pair(options: argparse.Namespace) -> Pair:
    """The pair that was named, or one of the two models that were; Refused with what is wrong."""
    if options.drafter is not None and options.target is None:
        raise Refused("--drafter drafts for a --target; name that too.")
    try:
        if options.target is not None:
            return registry.custom(options.target, options.drafter)
        return pairs.find(options.pair)
    except ValueError as reason:
        raise Refused(str(reason)) from None


def served(pair: Pair, temperature: float = 0.0) -> list[str]:
    """The methods that the pair serves; Refused with a sentence where its settings here cannot be read."""
    try:
        return registry.served(pair, temperature)
    except ValueError as reason:
        raise Refused(str(reason)) from None


def _names(options: argparse.Namespace) -> list[str]:
    if options.methods == "all":
        names = served(find_pair(options), options.temperature)
    else:
        names = [name.strip() for name in options.methods.split(",") if name.strip()]
    if not names:
        raise Refused("--methods names no method.")
    for name in names:
        if names.count(name) > 1:
            raise Refused(f"--methods names {name} twice.")
    return names if "ar" in names else ["ar", *names]


def _run(options: argparse.Namespace, names: list[str]) -> list[Lane]:
    """Check everything, load, answer; records go to the trace and, without --json, to the terminal."""
    pair = find_pair(options)
    chosen = pick(names, options.set, pair, options.temperature)
    if not options.prompt.strip() and not options.image and not options.video:
        raise Refused("There is nothing to answer: give --prompt, --image or --video.")
    try:
        pictures, clips = load_media(options.image, options.video, pair.n_frames)
    except MediaError as reason:
        raise Refused(str(reason)) from None
    with _opened(options.trace) as saved:
        return _answer(options, pair, chosen, [*pictures, *clips], saved)


def _answer(
    options: argparse.Namespace,
    pair: Pair,
    chosen: list[Choice],
    media: Sequence[Picture | Clip],
    saved: TextIO | None,
) -> list[Lane]:
    import torch

    from specvl_demo import session
    from specvl_demo.core.types import Sampling

    try:
        roles = list(dict.fromkeys(c.drafter.role for c in chosen if c.drafter.role is not None))
        loaded = registry.load(pair, roles, None, progress.tell, load_options(options))
        progress.done()
        asked = session.request(
            loaded,
            [session.turn(options.prompt, media)],
            options.max_new_tokens,
            Sampling(options.temperature, options.top_p, seed=options.seed),
        )
        running = session.race(loaded, asked, chosen)
        return gather(_watched(running, saved, quiet=options.json or len(chosen) > 1))
    except ValueError as reason:
        progress.done()
        raise Refused(str(reason)) from None
    except torch.OutOfMemoryError as fault:
        progress.done()
        raise MemoryError(str(fault)) from None


def _watched(running: Iterable[Record], saved: TextIO | None, quiet: bool) -> Iterator[Record]:
    """Pass records on; write each to the trace at once, so that a crash leaves what there was."""
    for record in running:
        if saved is not None:
            _save(record, saved)
        if not quiet and isinstance(record, Round):
            sys.stdout.write(tables.plain("".join(token.text for token in record.tokens)))
            sys.stdout.flush()
        yield record
    if not quiet:
        sys.stdout.write("\n")


def _save(record: Record, saved: TextIO) -> None:
    try:
        saved.write(records.dumps(record) + "\n")
        saved.flush()
    except OSError as fault:
        raise Refused(f"--trace {saved.name} cannot be written: {fault.strerror or fault}.") from None


@contextmanager
def _opened(path: str | None) -> Iterator[TextIO | None]:
    """The trace file, opened before anything is computed; None where none is wanted."""
    if path is None:
        yield None
        return
    try:
        file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed below, without a second complaint
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or fault
        raise Refused(f"--trace {path} cannot be written: {reason}.") from None
    try:
        yield file
    finally:
        with suppress(OSError):  # every record was flushed when it was written, or refused then
            file.close()


def _say_numbers(lanes: list[Lane]) -> None:
    if len(lanes) > 1:
        for lane in lanes:
            sys.stdout.write(f"{lane.begin.title}: {tables.plain(lane.text)}\n\n")
    sys.stdout.write(tables.render(tables.lane_rows(lanes), tables.LANE_COLUMNS, "markdown") + "\n")
    for lane in lanes[1:]:
        beside = compare(lane, lanes[0])
        said = beside.doubt() or beside.why_slow()
        if said:
            sys.stdout.write(f"{lane.begin.title}: {said}\n")
    sys.stdout.write("tau counts tokens per target forward, the target's own token included.\n")


def _print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")


def _first(row: dict[str, object], fields: Sequence[str]) -> dict[str, object]:
    return {name: row[name] for name in fields}


def _code(lanes: list[Lane]) -> int:
    return int(any(lane.end is not None and lane.end.stop == "error" for lane in lanes))

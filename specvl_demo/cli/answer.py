"""`generate` and `race`: one question, answered by one method or by several side by side.

Input is checked before torch is imported; the answer streams while it is generated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from specvl_demo import pairs, question, records
from specvl_demo.cli import progress
from specvl_demo.cli.parse import InputError, cannot_be
from specvl_demo.methods import base
from specvl_demo.methods.base import Choice
from specvl_demo.pairs import PairSpec, Role
from specvl_demo.records import Begin, LaneRecords, Record, Round, gather
from specvl_demo.report import confidence, remarks, tables
from specvl_demo.serving import availability, choosing
from specvl_demo.serving.custom import custom_pair

if TYPE_CHECKING:
    from specvl_demo.serving.loader import Loaded


def generate(options: argparse.Namespace) -> int:
    """Run one method; print its answer as it is generated, then its figures, or one JSON
    document.
    """
    if options.batch is not None:
        return batch(options)
    lanes, fault = _run(options, [options.method])
    if options.json:
        print_json(tables.lane_row(lanes[0]))
    else:
        _say_numbers(lanes)
    return _code(lanes, fault)


def race(options: argparse.Namespace) -> int:
    """Run several methods, AR first; print all answers and a table, or one JSON document."""
    lanes, fault = _run(options, _names(options))
    if options.json:
        print_json({"lanes": tables.lane_rows(lanes)})
    else:
        _say_numbers(lanes)
    return _code(lanes, fault)


def batch(options: argparse.Namespace) -> int:
    """Answer every question of a file with one load: a JSON line in, a JSON line out, in order.

    A line that cannot be answered yields {"id", "error"}, and the others are still answered; the
    exit code is then 1.
    """
    if not options.json:
        raise InputError("--batch prints JSON lines; add --json.")
    if options.prompt or options.image or options.video or options.trace:
        raise InputError(
            "--batch takes prompts and files from its lines; omit --prompt, --image, --video and"
            " --trace."
        )
    pair = find_pair(options)
    (choice,) = pick([options.method], options.set, pair, options.temperature)
    try:
        lines = Path(options.batch).read_text(encoding="utf-8").split("\n")
    except OSError as fault:
        raise cannot_be("read", f"--batch {options.batch}", fault) from None
    except ValueError:
        raise InputError(f"--batch {options.batch} is not UTF-8 text.") from None
    from specvl_demo.serving import session

    shared = {name: value for name, value in vars(options).items() if name not in question.LINE}
    find = partial(question.named, folders=(Path(), Path(options.batch).parent))
    loaded = _load(options, pair, [choice])
    wrong = 0
    for number, line in enumerate(filter(str.strip, lines)):
        answer: dict[str, object] = {"id": None}
        try:
            data = question.line_of(line)
            if isinstance(data.get("id"), str | int):
                answer["id"] = data["id"]
            if others := data.keys() - question.LINE:
                raise ValueError(f"a line of --batch cannot have {', '.join(sorted(others))}.")
            request = session.request(loaded, question.read({**shared, **data}, find))
            (lane,) = gather(session.race(loaded, request, [choice], warmed=number > 0))
            answer |= tables.lane_row(lane)
        except (ValueError, FloatingPointError) as reason:
            answer["error"] = str(reason)
            wrong += 1
        print_json(answer)
        sys.stdout.flush()
    return int(wrong > 0)


def pick(
    names: Sequence[str], settings: Sequence[tuple[str, str]], pair: PairSpec, temperature: float
) -> list[Choice]:
    """Return each method with its settings, checked against the pair; ValueError with a sentence.

    `METHOD.KEY=VALUE` applies to one method; a bare KEY to all that have it, at least one of which
    must run.
    """
    chosen, used = [], set()
    for name in names:
        keys = {*base.SLOTS, "preset", *choosing.choose(pair, name, {}, 0.0).params}
        mine: dict[str, str] = {}
        for key, value in settings:
            owner, dot, inner = key.rpartition(".")
            if dot and owner not in names:
                running = ", ".join(names)
                raise InputError(f"--set {key}: {owner} does not run here; running: {running}.")
            if owner == name or (not dot and (len(names) == 1 or inner in keys)):
                mine[inner] = value
                used.add(key)
        chosen.append(choosing.choose(pair, name, mine, temperature))
    for key, _ in settings:
        if key not in used:
            raise InputError(f"--set {key}: none of {', '.join(names)} has this parameter.")
    return chosen


def find_pair(options: argparse.Namespace) -> PairSpec:
    """Return the named pair, or a pair of the two named models; ValueError if there is none."""
    if options.drafter is not None and options.target is None:
        raise InputError("--drafter needs the --target that it drafts for.")
    if options.target is not None:
        return custom_pair(options.target, options.drafter)
    return pairs.find(options.pair) if options.pair else choosing.default_pair()


def _names(options: argparse.Namespace) -> list[str]:
    if options.methods == "all":
        names = choosing.served(find_pair(options), options.temperature)
    else:
        names = [name.strip() for name in options.methods.split(",") if name.strip()]
    if not names:
        raise InputError("--methods names no method.")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--methods names {name} twice.")
    return names if "ar" in names else ["ar", *names]


def _run(
    options: argparse.Namespace, names: list[str]
) -> tuple[list[LaneRecords], InputError | None]:
    """Check everything, load, answer; records go to the trace and, without --json, to the
    terminal.

    Returns the lanes, and why the trace is incomplete, if the disk filled up while they ran.
    """
    pair = find_pair(options)
    chosen = pick(names, options.set, pair, options.temperature)
    opened = question.read(vars(options)).opened(pair.n_frames)
    with _opened(options.trace) as saved:
        from specvl_demo.serving import session

        loaded = _load(options, pair, chosen)
        notes = records.QuestionNotes(options.prompt)
        running = session.race(loaded, session.request(loaded, opened), chosen, notes=notes)
        lost: list[InputError] = []
        quiet = options.json or len(chosen) > 1
        return gather(_watched(running, saved, quiet, lost)), lost[0] if lost else None


def load(options: argparse.Namespace, pair: PairSpec, roles: Sequence[Role]) -> Loaded:
    """Load the pair with drafters of these roles, according to the options."""
    from specvl_demo.serving import loader

    settings = availability.Options.of_environment(
        options.allow_pickle,
        dtype=options.dtype,
        quantised=options.quantised,
        exact=options.exact,
    )
    return loader.load(pair, roles, progress.tell, settings)


def _load(options: argparse.Namespace, pair: PairSpec, chosen: Sequence[Choice]) -> Loaded:
    try:
        loaded = load(options, pair, choosing.roles_of(chosen))
    finally:
        progress.done()
    for remark in loaded.remarks:
        sys.stderr.write(f"Note: {remark}\n")
    return loaded


def _watched(
    running: Iterable[Record], saved: TextIO | None, quiet: bool, lost: list[InputError]
) -> Iterator[Record]:
    """Pass records on, writing each to the trace at once, so that a crash loses nothing.

    A trace that cannot be written is an error before an answer has begun; later it is added to
    `lost`, and the answer goes on.
    """
    for record in running:
        if saved is not None and not lost:
            try:
                saved.write(records.dumps(record) + "\n")
                saved.flush()
            except OSError as fault:
                lost.append(cannot_be("written", f"--trace {saved.name}", fault))
                if isinstance(record, Begin):
                    raise lost[0] from None
        if not quiet and isinstance(record, Round):
            sys.stdout.write(tables.plain("".join(token.text for token in record.tokens)))
            sys.stdout.flush()
        yield record
    if not quiet:
        sys.stdout.write("\n")


@contextmanager
def _opened(path: str | None) -> Iterator[TextIO | None]:
    """Open the trace file before anything is computed; None if there is none."""
    if path is None:
        yield None
        return
    try:
        file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed below, without a second error
    except (OSError, ValueError) as fault:
        raise cannot_be("written", f"--trace {path}", fault) from None
    try:
        yield file
    finally:
        # Every record was flushed, or its error reported, when it was written.
        with suppress(OSError):
            file.close()


def _say_numbers(lanes: list[LaneRecords]) -> None:
    if len(lanes) > 1:
        for lane in lanes:
            sys.stdout.write(f"{lane.begin.title}: {tables.plain(lane.text)}\n\n")
    sys.stdout.write(tables.render(tables.lane_rows(lanes), tables.LANE_COLUMNS) + "\n")
    for lane in lanes[1:]:
        if sentence := remarks.remark(lane, lanes):
            sys.stdout.write(f"{lane.begin.title}: {sentence}\n")
    if sure := confidence.sentence(lanes):
        sys.stdout.write(f"{sure}\n")
    sys.stdout.write("tau counts tokens per target forward, including the target's own token.\n")


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")


def _code(lanes: list[LaneRecords], fault: InputError | None) -> int:
    """Return the exit code after the answers were printed; InputError if their trace is lost."""
    if fault is not None:
        raise fault
    return int(any(lane.end is not None and lane.end.stop == "error" for lane in lanes))

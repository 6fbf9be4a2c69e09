"""`generate` and `race`: one question, answered by one method or by several side by side. `bench`:
methods measured on many questions.

Input is checked before torch is imported; the answer streams while it is generated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from specvl_demo import question, records
from specvl_demo.cli.parse import InputError, file_error
from specvl_demo.methods import base
from specvl_demo.pairs import PairSpec, Role, find, on_disk
from specvl_demo.pairs.fitting import Options
from specvl_demo.records import Begin, JsonObject, LaneRecords, Round, gather_lanes
from specvl_demo.report import tables, trace
from specvl_demo.serving import choosing
from specvl_demo.serving.custom import named_pair

if TYPE_CHECKING:
    from specvl_demo.serving.loaded import LoadedPair

NAMED = (*base.SLOTS, "preset")
"""Settings whose values are names."""


def generate(options: argparse.Namespace) -> int:
    """Run one method; print its answer as it is generated and its figures, or one JSON document."""
    if options.batch is not None:
        return answer_batch(options)
    return _answer_question(options, [options.method], lambda lanes: tables.lane_row(lanes[0]))


def race(options: argparse.Namespace) -> int:
    """Run several methods, AR first; print all answers and a table, or one JSON document."""
    return _answer_question(options, (), lambda lanes: {"lanes": tables.lane_rows(lanes)})


def answer_batch(options: argparse.Namespace) -> int:
    """Answer every question of a file with one load: a JSON line in, a JSON line out, in order.

    A line that cannot be answered yields {"id", "error"}; the exit code is then 1.
    """
    if not options.json:
        raise InputError("--batch prints JSON lines; add --json.")
    if options.prompt or options.image or options.video or options.trace:
        raise InputError(
            "--batch takes prompts and files from its lines; omit --prompt, --image, --video and"
            " --trace."
        )
    pair, (choice,) = choose_methods(options, [options.method])
    try:
        lines = Path(options.batch).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as fault:
        raise file_error("read", f"--batch {options.batch}", fault) from None
    if not (filled := [line for line in lines if line.strip()]) or filled[0].lstrip()[0] == "[":
        what = "is a JSON array" if filled else "is empty"
        raise InputError(f"--batch {options.batch} {what}; write one JSON object a line.")
    from specvl_demo.serving import session

    shared = {name: value for name, value in vars(options).items() if name not in question.LINE}
    find = partial(question.find_file, folders=(Path(), Path(options.batch).parent))
    loaded = _load_pair(options, pair, choosing.roles_of([choice]))
    wrong = 0
    for number, line in enumerate(filled):
        answer: dict[str, object] = {"id": None}
        try:
            data = question.parse_line(line)
            if isinstance(data.get("id"), str | int):
                answer["id"] = data["id"]
            if others := data.keys() - question.LINE:
                raise ValueError(f"a line of --batch cannot have {', '.join(sorted(others))}.")
            request = session.make_request(loaded, question.read({**shared, **data}, find))
            (lane,) = gather_lanes(session.race(loaded, request, [choice], warmed=number > 0))
            answer |= tables.lane_row(lane)
        except (ValueError, FloatingPointError) as reason:
            answer["error"] = str(reason)
            wrong += 1
        print_json(answer)
        sys.stdout.flush()
    return int(wrong > 0)


def bench(options: argparse.Namespace) -> int:
    """Measure methods side by side on many questions; print tables, or one JSON document."""
    pair, choices = choose_methods(options)
    sampling = question.read_sampling(vars(options))
    from specvl_demo.compare import measure, questions
    from specvl_demo.compare.peers import PEERS
    from specvl_demo.compare.report import hide_disturbed, page_of

    of_pair = find(options.suite) if options.suite else pair
    cases = questions.bench_questions(of_pair, options.data, options.prompts)
    peers = PEERS if options.peers else PEERS[:1]
    roles = choosing.roles_of(choices)
    if options.peers and "small" in on_disk.loadable_drafters(pair) and "small" not in roles:
        roles.append("small")
    loaded = _load_pair(options, pair, roles)
    with progress_bar() as tell:
        report = measure.run_bench(
            loaded, cases, choices, options.repeats, options.max_new_tokens, peers, tell, sampling
        )
    if options.json:
        print_json(report)
    else:
        sys.stdout.write(page_of(hide_disturbed(report)).to_markdown())
    return 0


def choose_methods(
    options: argparse.Namespace, names: Sequence[str] = ()
) -> tuple[PairSpec, list[base.Choice]]:
    """Return the pair, and each method with its settings, checked against the pair: by default AR,
    then those of --methods, or all others that the pair supports.

    `METHOD.KEY=VALUE` applies to one method; a bare KEY to all that have it, at least one, and not
    to the autoregressive lane beside them.
    """
    pair = named_pair(options.pair, options.target, options.drafter)
    temperature = options.temperature
    if not names:
        names = choosing.supported_methods(pair, temperature)
        if options.methods != ["all"]:
            names = [name for name, _ in choosing.read_lanes(options.methods, None)]
        names = ["ar", *(name for name in names if name != "ar")]
    drafting = [name for name in names if name != "ar"] or names
    given: dict[str, dict[str, str]] = {name: {} for name in names}
    # Parts first: they decide which parameters a method has.
    for key, value in sorted(options.set, key=lambda item: item[0].rpartition(".")[2] not in NAMED):
        owner, dot, inner = key.rpartition(".")
        if dot and owner not in names:
            running = ", ".join(names)
            raise InputError(f"--set {key}: {owner} does not run here; running: {running}.")
        takers = [owner] if dot else drafting
        if len(takers) > 1:
            changed = {name: {**given[name], key: value} for name in takers}
            # If no method can be set so, the first one says why.
            takers = [
                name for name in takers if choosing.fits(pair, name, changed[name], temperature)
            ] or takers
        for name in takers:
            given[name][inner] = value
    return pair, [choosing.choose(pair, name, given[name], temperature) for name in names]


def _answer_question(
    options: argparse.Namespace,
    names: Sequence[str],
    document: Callable[[list[LaneRecords]], JsonObject],
) -> int:
    """Check everything, load, answer; records go to the trace and, without --json, to the terminal.

    names: Of the methods; by default those of --methods. document: What --json prints.
    """
    pair, chosen = choose_methods(options, names)
    opened = question.read(vars(options)).read_files(pair)
    with _open_trace_file(options.trace) as saved:
        from specvl_demo.serving import session

        loaded = _load_pair(options, pair, choosing.roles_of(chosen))
        notes = records.AskedQuestion(options.prompt)
        running = session.race(loaded, session.make_request(loaded, opened), chosen, notes=notes)
        quiet = options.json or len(chosen) > 1
        lost: InputError | None = None
        heard = []
        for record in running:
            heard.append(record)
            if isinstance(record, Begin):
                _tell(record.notes.remarks)
            if saved is not None and lost is None:
                try:
                    saved.write(f"{records.dumps(record)}\n".encode())
                except OSError as fault:
                    lost = file_error("written", f"--trace {saved.name}", fault)
                    if isinstance(record, Begin):  # nothing was answered yet
                        raise lost from None
            if not quiet and isinstance(record, Round):
                sys.stdout.write(tables.plain("".join(token.text for token in record.tokens)))
                sys.stdout.flush()
    lanes = gather_lanes(heard)
    if not quiet:
        sys.stdout.write("\n")
    if options.json:
        print_json(document(lanes))
    else:
        texts = (f"{lane.begin.title}: {tables.plain(lane.text)}\n\n" for lane in lanes)
        sys.stdout.writelines(texts if len(lanes) > 1 else ())
        sys.stdout.write(f"{trace.figures_table(lanes)}\n")
    if lost is not None:  # the disk filled up while they ran
        raise lost
    return int(any(lane.end is not None and lane.end.stop == "error" for lane in lanes))


@contextmanager
def progress_bar() -> Iterator[Callable[..., None]]:
    """Yield what shows, on one line of a terminal, the activity, and a bar with its share if known.

    At the end the line is cleared; without a terminal nothing is shown.
    """
    with tqdm(total=1.0, leave=False, disable=None) as bar:

        def tell(text: str, share: float | None = None) -> None:
            bar.bar_format = "{desc}…" if share is None else "{bar:24} {percentage:3.0f} %  {desc}…"
            bar.n = share or 0.0
            bar.set_description_str(text)

        yield tell


def _load_pair(options: argparse.Namespace, pair: PairSpec, roles: Sequence[Role]) -> LoadedPair:
    """Load the pair with drafters of these roles, according to the options."""
    from specvl_demo.serving import loader

    settings = Options(options.dtype, options.quantised, options.exact)
    with progress_bar() as tell:
        loaded = loader.load_pair(pair, roles, tell, settings)
    _tell(loaded.remarks)
    return loaded


def _tell(remarks: Sequence[str]) -> None:
    for remark in remarks:
        sys.stderr.write(f"Note: {remark}\n")


def _open_trace_file(path: str | None) -> AbstractContextManager[FileIO | None]:
    """Open the trace file, unbuffered, so that a crash loses nothing; None if there is none."""
    if path is None:
        return nullcontext()
    if not path.endswith(".jsonl") and not path.startswith("/dev/"):
        raise InputError(f"--trace {path} must end in .jsonl, since lines of JSON are written.")
    try:
        return Path(path).open("wb", buffering=0)
    except (OSError, ValueError) as fault:
        raise file_error("written", f"--trace {path}", fault) from None


def print_json(document: object) -> None:
    """Print JSON, in ASCII where the output is not in UTF-8."""
    escaped = not str(getattr(sys.stdout, "encoding", "")).lower().startswith("utf")
    sys.stdout.write(json.dumps(document, ensure_ascii=escaped, allow_nan=False) + "\n")

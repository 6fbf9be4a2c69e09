"""`python -m lab.gpu [--out FILE.json]`: all that only a GPU can tell, in at most six minutes,
without downloads. Without a GPU the same parts run on the processor in tiny sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.gpu import document, isolated
from lab.gpu.isolated import Outcome, Setting

MINUTES, TINY_MINUTES = 6.0, 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.docs:
        for file in document.write(json.loads(Path(options.docs).read_text(encoding="utf-8"))):
            sys.stderr.write(f"Wrote {file}\n")
        return 0
    from lab.gpu.parts import PARTS  # noqa: PLC0415 - seconds, and documents need none of it
    from specvl_demo.compare import provenance  # noqa: PLC0415
    from specvl_demo.pairs.machine import detect_machine  # noqa: PLC0415

    tiny = options.tiny or not detect_machine().gpus
    names = [name for name in PARTS if not options.part or name in options.part]
    unknown = set(options.part) - set(PARTS)
    if unknown:
        known = "\n  ".join(PARTS)
        sys.stderr.write(f"There is no part {min(unknown)!r}; known:\n  {known}\n")
        return 2
    if tiny:
        # Several threads gain nothing on such models, and wait for each other on a busy machine.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    minutes = options.minutes or (TINY_MINUTES if tiny else MINUTES)
    begun = time.monotonic()
    record: dict[str, Any] = {"machine": provenance.collect_facts(), "tiny": tiny}
    with tempfile.TemporaryDirectory(prefix="specvl-gpu-", dir=options.folder) as folder:
        setting = Setting(Path(folder), tiny)
        parts = [PARTS[name] for name in names]
        record["plan"] = isolated.planned(parts, 60 * minutes)
        sys.stderr.write(record["plan"])
        for outcomes in isolated.run(parts, setting, 60 * minutes, _tell(begun)):
            record |= {"seconds": time.monotonic() - begun, "parts": list(map(asdict, outcomes))}
            if options.out:
                Path(options.out).write_text(json.dumps(record, indent=1), encoding="utf-8")
    sys.stdout.write(document.text(record) if not options.out else _summary(outcomes))
    return int(any(each.fault for each in outcomes))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.gpu", description=__doc__)
    parser.add_argument("--out", metavar="FILE.json", help="write the record, after every part")
    parser.add_argument("--part", action="append", default=[], help="only this part; repeatable")
    parser.add_argument("--tiny", action="store_true", help="sizes for any machine, also on a GPU")
    parser.add_argument("--minutes", type=float, help="for all parts together")
    parser.add_argument("--folder", help="where random models are written (25 GB of real sizes)")
    parser.add_argument(
        "--docs", metavar="FILE.json", help="make docs/gpu.md and README's table of a record"
    )
    return parser.parse_args(arguments)


def _tell(begun: float) -> Any:
    return lambda text: sys.stderr.write(f"[{time.monotonic() - begun:4.0f} s] {text}\n")


def _summary(outcomes: Sequence[Outcome]) -> str:
    lines = [
        f"{each.part}: {len(each.rows)} rows in {each.seconds:.0f} s. {each.fault or ''}".rstrip()
        for each in outcomes
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())

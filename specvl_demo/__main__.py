"""The command line: `python -m specvl_demo COMMAND …`, or `specvl-demo COMMAND …` once installed.

Parses, dispatches, and turns errors that the user can fix into one sentence on standard error and
exit code 2. Imports nothing heavy itself, so that help, traces and mistakes return at once.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence

from specvl_demo.cli.parse import InputError, parse, run
from specvl_demo.core.faults import cause, loses_device
from specvl_demo.report.tables import one_line

DEVICE_LOST = (
    "The GPU stopped responding: {reason} Run the command again; if it fails again, run it with"
    " SPECVL_GRAPHS=off, or with CUDA_LAUNCH_BLOCKING=1 to see where."
)
"""CUDA answers every later call of this process with an error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, as `guarded` does."""
    return guarded(lambda: run(parse(sys.argv[1:] if argv is None else argv)))


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 refused, 130 interrupted."""
    try:
        if sys.flags.optimize > 1:
            raise InputError(
                "python -OO removes docstrings that transformers builds its models from: run"
                " without -OO"
            )
        code = command()
        sys.stdout.flush()
        return code
    except InputError as reason:
        sys.stderr.write(f"{_sentence(str(reason))}\n")
        return 2
    except ModuleNotFoundError as fault:
        if (fault.name or "").startswith("specvl_demo"):
            raise
        sys.stderr.write(
            f"{fault.name} is not installed: pip install specvl-demo, or use `make demo`.\n"
        )
        return 1
    except FloatingPointError as fault:
        sys.stderr.write(f"{_sentence(str(fault))}\n")
        return 1
    except (MemoryError, RuntimeError) as fault:
        if loses_device(fault):
            sys.stderr.write(f"{DEVICE_LOST.format(reason=_sentence(cause(fault)))}\n")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # what is freed at exit would fail once more, and abort
        if not isinstance(fault, MemoryError) and type(fault).__name__ != "OutOfMemoryError":
            raise  # torch's own class, since torch is not imported here
        sys.stderr.write(f"Out of memory: {_sentence(str(fault) or 'the machine has no more')}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return 130
    except OSError as fault:
        if fault.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        # Python would report the error once more when it closes the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(
            fault, BrokenPipeError
        ):  # otherwise the output's reader has gone, and there is no one to tell
            sys.stderr.write(
                f"The output cannot be written: {_sentence(fault.strerror or str(fault))}\n"
            )
        return 1


def _sentence(text: str) -> str:
    """Return one line with a full stop, long words cut and without control characters."""
    text = re.sub(r"\S{200,}", lambda long: f"{long[0][:80]}…{long[0][-80:]}", one_line(text))
    return text + ("" if text.endswith((".", "!", "?", ").")) else ".")


if __name__ == "__main__":
    sys.exit(main())

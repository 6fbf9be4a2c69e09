"""The command line: `python -m specvl_demo COMMAND …`, or `specvl-demo COMMAND …` once installed.

Parses, dispatches, and turns errors that the user can fix into one sentence on standard error and
exit code 2. Imports nothing heavy itself, so that help, traces and mistakes return at once.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence

from specvl_demo.cli.parse import InputError, parse_arguments, run_command
from specvl_demo.core.faults import cause, lacks_memory, loses_device
from specvl_demo.report.tables import one_line

DEVICE_LOST = (
    "The GPU stopped responding: {reason} Run the command again; if it fails again, run it with"
    " SPECVL_GRAPHS=off, or with CUDA_LAUNCH_BLOCKING=1 to see where."
)
"""CUDA answers every later call of this process with an error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, as `run_guarded` does."""
    return run_guarded(lambda: run_command(parse_arguments(sys.argv[1:] if argv is None else argv)))


def run_guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 refused, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a console may lack characters of an answer
        sys.stdout.reconfigure(errors="replace")
    try:
        if sys.flags.optimize > 1:
            raise InputError(
                "python -OO removes docstrings that transformers needs: run without it"
            )
        code = command()
        sys.stdout.flush()
        return code
    except InputError as reason:
        return _report(str(reason), 2)
    except ModuleNotFoundError as fault:
        if (fault.name or "").startswith("specvl_demo"):
            raise
        return _report(
            f"{fault.name} is not installed: pip install specvl-demo, or use `make demo`", 1
        )
    except FloatingPointError as fault:
        return _report(str(fault), 1)
    except (MemoryError, RuntimeError) as fault:
        if loses_device(fault):
            _report(DEVICE_LOST.format(reason=_sentence(cause(fault))), 1)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # what is freed at exit would fail once more, and abort
        if not lacks_memory(fault):
            raise
        return _report(f"Out of memory: {str(fault) or 'the machine has no more'}", 1)
    except KeyboardInterrupt:
        return _report("Interrupted", 130)
    except OSError as fault:
        if fault.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        # Python would report the error once more when it closes the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(fault, BrokenPipeError):  # there is no one to tell
            return 1
        return _report(f"The output cannot be written: {fault.strerror or fault}", 1)


def _report(text: str, code: int) -> int:
    """Tell a person what is wrong, in one line, and return the exit code."""
    sys.stderr.write(f"{_sentence(text)}\n")
    return code


def _sentence(text: str) -> str:
    """Return one line with a full stop, long words cut and without control characters."""
    text = re.sub(r"\S{200,}", lambda long: f"{long[0][:80]}…{long[0][-80:]}", one_line(text))
    return text + ("" if text.endswith((".", "!", "?", ").")) else ".")


if __name__ == "__main__":
    sys.exit(main())

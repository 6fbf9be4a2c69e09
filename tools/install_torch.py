"""Installs PyTorch into the Python that runs this: the smallest build that suits this machine.

    python tools/install_torch.py VERSION [--index URL] [--accelerator auto|cpu|cuda]

Without a GPU, Linux takes the CPU build from the configured package indexes, else from PyTorch's
own index, else the plain wheel, which includes CUDA. A failed attempt is reported in one line
before the next; pip's own output is shown only if none succeeded. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# An unreachable index must not delay the set-up for minutes.
IMPATIENT = ("--retries", "1", "--timeout", "15")
PLAIN_SIZE = "about 3 GB to download, 5 GB on disk"


def ways(version: str, index: str, accelerator: str) -> list[tuple[str, list[str]]]:
    """Return what to try, in order: a description, and the arguments for `pip install`."""
    plain = f"torch=={version}"
    if index:
        return [(f"torch {version} from {index}", [plain, "--index-url", index])]
    # The wheels for macOS and Windows are CPU builds or small ones; only Linux has a choice.
    if accelerator == "auto":
        has_gpu = shutil.which("nvidia-smi") is not None
        accelerator = "cpu" if platform.system() == "Linux" and not has_gpu else "cuda"
    if accelerator == "cuda":
        return [(f"torch {version} from the configured index", [plain])]
    own = [f"{plain}+cpu", "--index-url", PYTORCH_CPU_INDEX, *IMPATIENT]
    return [
        ("the CPU build from the configured index", [f"{plain}+cpu"]),
        (f"the CPU build from {PYTORCH_CPU_INDEX}", own),
        (f"the plain build, which brings CUDA on Linux ({PLAIN_SIZE})", [plain]),
    ]


def install(arguments: list[str]) -> str:
    """Run pip with its progress shown; return its standard error if it failed, else an empty
    string.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [*pip, "install", "--progress-bar", "on", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode == 0:
        return ""
    return done.stderr.strip() or f"pip ended with {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--index", default="", help="the one index to take torch from")
    parser.add_argument("--accelerator", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    output = ""
    for what, arguments in ways(options.version, options.index, options.accelerator):
        print(f"Installing {what}", flush=True)
        output = install(arguments)
        if not output:
            return 0
        print(f"Not possible: {what}.", flush=True)
    advice = "Check the network, or name an index that has it: make demo TORCH_INDEX=https://..."
    print(f"{output}\n\ntorch {options.version} could not be installed. {advice}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

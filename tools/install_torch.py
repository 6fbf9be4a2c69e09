"""Installs torch and torchvision into the Python that runs this: the smallest builds that suit this
machine.

    python tools/install_torch.py [--index URL] [--accelerator auto|cpu|cuda]

Their versions are those of requirements.txt. Without a GPU, Linux takes the CPU builds of both from
the configured package indexes, else from PyTorch's own index, else torch's alone, else the plain
wheel, which includes CUDA; the demo works with torchvision's plain wheel beside each. A failed
attempt is reported in one line before the next; pip's own output is shown only if none succeeded.
Needs only the standard library.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# An unreachable index must not delay the set-up for minutes.
IMPATIENT = ("--retries", "1", "--timeout", "15")
PLAIN_SIZE = "about 3 GB to download, 5 GB on disk"


def pinned() -> tuple[str, str]:
    """Return requirements.txt's versions of torch and torchvision."""
    here = Path(__file__).resolve().parent
    file = next(
        f for f in (here.parent / "requirements.txt", here / "requirements.txt") if f.exists()
    )
    versions = dict(re.findall(r"^(torch|torchvision)==(\S+)$", file.read_text(), re.M))
    return versions["torch"], versions["torchvision"]


def ways(torch: str, torchvision: str, index: str, accelerator: str) -> list[tuple[str, list[str]]]:
    """Return what to try, in order: a description, and the arguments for `pip install`."""
    plain = f"torch=={torch}"
    if index:
        both = [plain, f"torchvision=={torchvision}"]
        return [
            (f"torch {torch}{beside} from {index}", [*named, "--index-url", index])
            for beside, named in ((" and torchvision", both), ("", [plain]))
        ]
    # The wheels for macOS and Windows are CPU builds or small ones; only Linux has a choice.
    if accelerator == "auto":
        has_gpu = shutil.which("nvidia-smi") is not None
        accelerator = "cpu" if platform.system() == "Linux" and not has_gpu else "cuda"
    if accelerator == "cuda":
        return [(f"torch {torch} from the configured index", [plain])]
    both = [f"{plain}+cpu", f"torchvision=={torchvision}+cpu"]
    pytorch = ["--index-url", PYTORCH_CPU_INDEX, *IMPATIENT]
    return [
        ("the CPU builds of torch and torchvision from the configured index", both),
        (f"the same from {PYTORCH_CPU_INDEX}", [*both, *pytorch]),
        ("the CPU build of torch from the configured index", both[:1]),
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
    parser.add_argument("--index", default="", help="the one index to take torch from")
    parser.add_argument("--accelerator", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    torch, torchvision = pinned()
    output = ""
    for what, arguments in ways(torch, torchvision, options.index, options.accelerator):
        print(f"Installing {what}", flush=True)
        output = install(arguments)
        if not output:
            return 0
        print(f"Not possible: {what}.", flush=True)
    advice = "Check the network, or name an index that has it: make demo TORCH_INDEX=https://..."
    print(f"{output}\n\ntorch {torch} could not be installed. {advice}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Publishes this checkout as a Space: the files it runs on, and those its documents link to.

    python tools/publish_space.py --dry-run FOLDER       the tree that would be uploaded, with sizes
    python tools/publish_space.py OWNER/NAME [--hardware gpu] [--private]

Binaries are uploaded by HTTP, which the Hub accepts at any size; it refuses a `git push` of this
repository's history. `--hardware` does not choose the Space's hardware, which its settings do: with
`cpu`, the default, requirements.txt uses PyTorch's CPU builds, with `gpu` those for CUDA. FOLDER
may also be pushed as a new history: its .gitattributes has the rules that the Hub requires. Needs a
login (`hf auth login`) for anything but --dry-run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from install_torch import PYTORCH_CPU_INDEX

ROOT = Path(__file__).resolve().parent.parent
RUN = ("app.py", "requirements.txt", "pyproject.toml", "specvl_demo", "assets", "examples")
TOLD = ("*.md", "LICENSE", "CITATION.bib", "docs", "lab/notes/*.md")
"""What documents link to."""
LFS = "*.safetensors *.npy *.png *.jpg *.webm *.webp"


def stage(folder: Path, hardware: str) -> list[Path]:
    """Copy the Space's files that git tracks into an empty folder, and return them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *RUN, *(f":(glob){path}" for path in TOLD)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, place)
    if hardware == "cpu":
        pins = folder / "requirements.txt"
        pins.write_text(f"--extra-index-url {PYTORCH_CPU_INDEX}\n{pins.read_text()}")
    rules = (f"{kind} filter=lfs diff=lfs merge=lfs -text\n" for kind in LFS.split())
    (folder / ".gitattributes").write_text("".join(rules))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "space", nargs="?", help="OWNER/NAME on the Hub; created if it does not exist"
    )
    parser.add_argument(
        "--dry-run", metavar="FOLDER", type=Path, help="write the tree without uploading it"
    )
    parser.add_argument(
        "--hardware",
        choices=("cpu", "gpu"),
        default="cpu",
        help="which build of PyTorch the Space installs; its settings choose the hardware",
    )
    parser.add_argument("--private", action="store_true")
    options = parser.parse_args()
    if (options.space is None) == (options.dry_run is None):
        parser.error("name the Space, or a folder after --dry-run")
    if options.dry_run:
        if options.dry_run.exists() and any(options.dry_run.iterdir()):
            parser.error(f"{options.dry_run} is not empty")
        files = stage(options.dry_run, options.hardware)
        for path in files:
            print(f"{path.stat().st_size:>12,}  {path.relative_to(options.dry_run)}")
        print(f"{sum(path.stat().st_size for path in files):>12,}  {len(files)} files")
        return 0
    # A dry run needs none of them.
    from httpx import HTTPError  # noqa: PLC0415
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    api = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), options.hardware)
        try:
            api.create_repo(
                options.space,
                repo_type="space",
                space_sdk="gradio",
                private=options.private,
                exist_ok=True,
            )
            commit = api.upload_folder(
                repo_id=options.space,
                repo_type="space",
                folder_path=folder,
                delete_patterns="*",  # files that only an earlier version had
                commit_message="Publish",
            )
        except (HfHubHTTPError, HTTPError, OSError, ValueError) as fault:
            reason = " ".join(str(fault).split())[:300] or type(fault).__name__
            parser.exit(
                1,
                f"{options.space} was not published: {reason} A connection, and a token"
                " that may write (`hf auth login`), are needed.\n",
            )
    print(commit.commit_url)
    return 0


if __name__ == "__main__":
    sys.exit(main())

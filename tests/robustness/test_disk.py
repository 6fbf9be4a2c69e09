"""A disk of 40 MB: what does not fit is refused in a sentence, others are served, and what goes
makes room. Of the 40 MB eight may be used: the rest is what the page leaves free.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from specvl_demo.places import EXAMPLES
from specvl_demo.ui import messages
from tests.page.conftest import FAKE_PAGE
from tests.robustness.support import sentence, server, texts
from tests.robustness.test_load import ROUNDS, asked
from tests.robustness.test_served import MOUNTS
from tests.robustness.visitor import Turned, Visitor

pytestmark = pytest.mark.skipif(not MOUNTS, reason="only root can mount a small disk")
MB = 2**20
DISK_BYTES = 40 * MB
START = """
import os, sys
uploads = os.environ["GRADIO_TEMP_DIR"]
mount = f"mount -t tmpfs -o size={size} tmpfs '{{uploads}}' || exit 97"
command = f'{{mount}}; exec "$@"'
run = [sys.executable, {script!r}, *sys.argv[1:]]
os.makedirs(uploads)
os.execvp("unshare", ["unshare", "-m", "sh", "-c", command, "sh", *run])
"""


@pytest.fixture
def small(ledger: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The page whose folder of uploads is a disk of 40 MB: its address, and that folder."""
    script = tmp_path / "start.py"
    script.write_text(START.format(size=DISK_BYTES, script=str(FAKE_PAGE)))
    with server(script, tmp_path) as (url, pid):
        yield url, Path(f"/proc/{pid}/root{tmp_path}/uploads")
    assert "Traceback" not in (tmp_path / "log.txt").read_text()


def sizes(folder: Path) -> list[int]:
    """Of the files there, in MB; files and folders may go while they are counted."""
    found = []
    for parent, _, names in os.walk(folder):  # which skips folders that went, as rglob does not
        for name in names:
            with suppress(FileNotFoundError):
                found.append((Path(parent) / name).stat().st_size // MB)
    return sorted(found)


def noise(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


async def question(visitor: Visitor, who: str, **changes: Any) -> list[dict[str, Any]]:
    async with aclosing(visitor.ask(asked(who) | changes)) as running:
        return [event async for event in running]


async def asks_alone(url: str, who: str) -> str:
    """The answer to a visitor who adds nothing."""
    async with Visitor(url) as visitor:
        return texts(await question(visitor, who))


@pytest.mark.slow
def test_a_disk_of_forty_megabytes(small: tuple[str, Path]) -> None:
    url, folder = small

    async def hold(visitor: Visitor, name: str, size: int) -> None:
        """Ask about a file of this size, so that nobody else's makes it go."""
        sent = await visitor.upload(f"{name}.png", noise(name, size))
        assert sentence(await question(visitor, name, media=[sent])) is None

    async def story(first: Visitor, second: Visitor, other: Visitor) -> None:
        await hold(first, "first", 3 * MB)
        # One more file fits, two that come at once do not.
        both = [other.upload(f"{n}.png", noise(str(n), 3 * MB)) for n in range(2)]
        came = await asyncio.gather(*both, return_exceptions=True)
        turned = [str(one) for one in came if isinstance(one, Turned)]
        assert len(turned) == 1 and messages.DISK_FULL in turned[0]
        await hold(second, "second", 4 * MB)  # in the place of what nobody asked about
        await hold(second, "third", 850_000)
        assert sizes(folder) == [0, 3, 4]
        trace = EXAMPLES / "scene.trace.jsonl"
        sent = await other.upload(trace.name, trace.read_bytes())
        assert await other.server("share", sent["path"]) == {"problem": messages.DISK_FULL}
        for _ in range(4):
            with pytest.raises(Turned, match=messages.DISK_FULL):
                await other.upload("more.png", noise("more", MB))
        told = await asyncio.gather(*(asks_alone(url, f"v{n}") for n in range(4)))
        assert told == [f"v{n} " * ROUNDS for n in range(4)]
        assert sizes(folder) == [0, 0, 3, 4]
        await first.leave()  # a visit that ends makes room
        while 3 in sizes(folder):
            await asyncio.sleep(0.05)
        compact = {"path": sent["path"], "as": "compact"}
        assert "url" in await other.server("share", compact)
        assert sizes(folder) == [0, 0, 0, 4]

    async def visits() -> None:
        async with Visitor(url) as first, Visitor(url) as second, Visitor(url) as other:
            await asyncio.wait_for(story(first, second, other), 400)

    asyncio.run(visits())
    assert not [path for path in folder.rglob("*") if path.suffix == ".part"]

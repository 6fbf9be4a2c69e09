"""A disk of 40 MB: what does not fit is refused in a sentence, others are served, and what goes
makes room. Of the 40 MB eight may be used: the rest is what the page leaves free.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from specvl_demo.places import EXAMPLES
from specvl_demo.ui import messages
from specvl_demo.ui.serve.uploads import SPARE_BYTES
from tests.robustness.support import sentence, server, texts
from tests.robustness.test_load import ECHO, asked
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
    script.write_text(START.format(size=DISK_BYTES, script=str(ECHO)))
    with server(script, tmp_path) as (url, pid):
        yield url, Path(f"/proc/{pid}/root{tmp_path}/uploads")
    assert "Traceback" not in (tmp_path / "log.txt").read_text()


def sizes(folder: Path) -> list[int]:
    """Of the files there, in MB."""
    return sorted(path.stat().st_size // MB for path in folder.rglob("*") if path.is_file())


def noise(name: str, mb: int) -> bytes:
    return random.Random(name).randbytes(mb * MB)


async def question(visitor: Visitor, who: str, **changes: Any) -> list[dict[str, Any]]:
    async with aclosing(visitor.ask(asked(who) | changes)) as running:
        return [event async for event in running]


def test_a_disk_of_forty_megabytes(small: tuple[str, Path]) -> None:
    url, folder = small

    async def holding(name: str, mb: int) -> Visitor:
        """A visitor whose question is about a file of this size."""
        visitor = await Visitor(url).__aenter__()
        sent = await visitor.upload(f"{name}.png", noise(name, mb))
        assert sentence(await question(visitor, name, media=[sent])) is None
        return visitor

    async def refused(visitor: Visitor, mb: int) -> None:
        with pytest.raises(Turned, match=messages.DISK_FULL):
            await visitor.upload("more.png", noise("more", mb))

    async def story() -> None:
        first, second = await holding("first", 3), await holding("second", 2)
        async with Visitor(url) as other:
            trace = EXAMPLES / "scene.trace.jsonl"
            sent = await other.upload(trace.name, trace.read_bytes())
            assert await other.server("share", sent["path"]) == {"problem": messages.DISK_FULL}
            # One file fits, two that come at once do not; whoever is refused may ask without one.
            both = [other.upload(f"{n}.png", noise(str(n), 2)) for n in range(2)]
            came = await asyncio.gather(*both, return_exceptions=True)
            turned = [str(one) for one in came if isinstance(one, Turned)]
            assert len(turned) == 1 and messages.DISK_FULL in turned[0]
            await asyncio.gather(*(refused(other, 9) for _ in range(8)))
            told = await asyncio.gather(*(asks_alone(url, f"v{n}") for n in range(4)))
            assert told == [f"v{n} " * 4 for n in range(4)]
            assert {2, 3} <= set(sizes(folder)) and sum(sizes(folder)) <= 7
            # A visit that ends makes room.
            await first.leave()
            while 3 in sizes(folder):
                await asyncio.sleep(0.05)
            sent = await other.upload(trace.name, trace.read_bytes())
            assert "url" in await other.server("share", sent["path"])
        for visitor in (first, second):
            await visitor.__aexit__()

    asyncio.run(asyncio.wait_for(story(), 400))
    assert not [path for path in folder.rglob("*") if path.suffix == ".part"]
    free = DISK_BYTES - sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert free >= SPARE_BYTES - MB


async def asks_alone(url: str, who: str) -> str:
    """The answer to a visitor who adds nothing."""
    async with Visitor(url) as visitor:
        return texts(await question(visitor, who))

"""Composition of the page: one board, its event, the functions its scripts may call, the named endpoints.

Given what can be chosen (a catalog) and who computes (a desk); gives Blocks that are ready to launch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from specvl_demo.ui import words
from specvl_demo.ui.behaviour import Behaviour
from specvl_demo.ui.board import FILES, SCRIPTS, STYLES, board
from specvl_demo.ui.desk import Run, refusal
from specvl_demo.ui.endpoints import endpoints
from specvl_demo.ui.visits import Visits

QUIET = "body { background: #f6f7f8 } body.dark { background: #101214 } footer .divider { display: none }"
MOST_BYTES = 64 * 2**20
MOST_AT_ONCE = 64


def build(behaviour: Behaviour) -> gr.Blocks:
    """The page over its behaviour."""
    gr.set_static_paths([*SCRIPTS, *STYLES, *FILES.values(), *behaviour.files])

    def catalog(_: Any = None) -> dict[str, Any]:
        return behaviour.catalog

    def panel(asked: Any) -> dict[str, Any]:
        return behaviour.panel(asked)

    def stop(run: Any) -> None:
        behaviour.stop(run)

    def batches(run: Any) -> list[str]:
        return behaviour.batches(run)

    def scene(description: Any) -> dict[str, Any]:
        return behaviour.scene(description)

    visits = Visits(Path(get_upload_folder()))

    def leave(request: gr.Request) -> None:
        visits.leave(request.session_hash)
        if request.session_hash is not None:
            behaviour.leave(request.session_hash)

    async def run(event: gr.EventData, request: gr.Request) -> AsyncIterator[str]:
        visits.keep(request.session_hash, event._data)
        try:
            async with aclosing(behaviour.run(event._data, request.session_hash)) as stream:
                async for batch in stream:
                    yield batch
        except Exception as fault:
            yield Run().pack(refusal(words.PAGE_FAILED.format(reason=type(fault).__name__)))
            raise  # a mistake of ours: the log needs all of it

    # A visit's files go when it ends. What nobody asked about is looked for every ten minutes and removed
    # after two hours.
    with gr.Blocks(
        title=words.TITLE, fill_width=True, analytics_enabled=False, delete_cache=(600, 7200)
    ) as page:
        whole = board([catalog, panel, stop, batches, scene])
        # The line is the desk's, which shows everybody their place: Gradio lets all of them in.
        # A page may ask again before Gradio has closed its last event.
        whole.run(
            run,
            None,
            whole,
            show_progress="hidden",
            concurrency_limit=None,
            trigger_mode="multiple",
            api_visibility="private",
        )
        page.unload(leave)
        for name, function in endpoints(behaviour).items():
            gr.api(function, api_name=name, api_description=words.ENDPOINTS[name], concurrency_limit=None)
    page.queue(max_size=MOST_AT_ONCE)
    return page


def launch_settings() -> dict[str, Any]:
    """How this page is launched, wherever it runs."""
    return {
        "css": QUIET,
        "favicon_path": FILES["favicon"],
        "theme": gr.themes.Base(),
        "max_file_size": MOST_BYTES,
        "run_history": False,
        "footer_links": ["api"],
        "show_error": True,
        # Gradio would call its own address once and give up after three seconds, which a busy machine takes.
        "_frontend": False,
    }

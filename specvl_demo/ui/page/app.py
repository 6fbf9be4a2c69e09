"""Composition of the page: one board, its event, the functions its scripts may call, the named
endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import msgspec
from gradio import routes
from jinja2 import FileSystemLoader
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection

from specvl_demo import places
from specvl_demo.report import bundle, html
from specvl_demo.ui import messages
from specvl_demo.ui.page import chat
from specvl_demo.ui.page.endpoints import ARGUMENTS, publish_endpoints
from specvl_demo.ui.page.handlers import Caller, PageHandlers
from specvl_demo.ui.serve.route_filter import RouteFilter, Scope
from specvl_demo.ui.serve.uploads import MAX_AGE_S

OWN = bundle.PAGE
UI = places.ASSETS / "ui"
SCRIPTS = sorted({*(OWN / "js").rglob("*.js")} - {html.ENTRY})
FILES = {
    "main": OWN / "js" / "main.js",
    "plotly": html.PLOTLY,
    "logo": UI / "logo.svg",
}
PLACES = {"page": OWN, "ui": UI, "examples": places.EXAMPLES}
"""The folders of the page's own files, by the names under which they are fetched."""

QUIET = "body { background: #f6f7f8 } body.dark { background: #101214 }"
MAX_BYTES = 64 * 2**20
MAX_AT_ONCE = 64
SESSIONS = 64
"""Visits whose state Gradio keeps, the newest; this page stores nothing there."""
SERVED = (
    "read_catalog",
    "method_panel",
    "stop_run",
    "computing_time",
    "export_race",
    "compare_trace",
    "start_bench",
    "bench_progress",
    "bench_archive",
    "bench_race",
    "open_report",
    "check_clip",
)
"""The methods of the handlers that the page's scripts may call."""


def _server_function(method: Callable[[Any, Caller], Any]) -> Callable[..., Any]:
    """Wrap a bound method in a function, since Gradio sets attributes on what it serves; it returns
    {'problem': sentence} where the method raises a ValueError.
    """

    def call(payload: Any, request: gr.Request) -> Any:
        try:
            return method(payload, Caller(request.state.visit, *(request.client or ())))
        except ValueError as fault:
            return {"problem": str(fault)}

    call.__name__ = method.__name__
    return call


def page_component(server_functions: Sequence[Callable[..., Any]]) -> gr.HTML:
    """Return the page's one component; its scripts may call `server_functions`.

    The template is static, so that no model text ever passes through a template engine. Nothing
    nested is ever sent, since Gradio's streaming difference corrupts nested lists that shrink.
    """
    named = {
        "files": {name: _public_path(path) for name, path in FILES.items()},
        "scripts": list(map(_public_path, SCRIPTS)),
        "styles": list(map(_public_path, bundle.SHEETS)),
    }
    on_load = (OWN / "on_load.js").read_text("utf-8")
    return gr.HTML(
        value="",
        # The page's styles are loaded later.
        html_template=(
            "<div class='vl-boot' aria-busy='true' style='padding: 20vh 0; text-align: center'>"
            "SpecVL is loading…</div>"
        ),
        js_on_load=on_load.replace("NAMED", msgspec.json.encode(named).decode()),
        apply_default_css=False,
        server_functions=list(server_functions),
        elem_id="specvl",
    )


def _public_path(path: Path) -> str:
    """Return the path by which browsers ask for a file: the name of its place, and the rest."""
    place, folder = next(entry for entry in PLACES.items() if path.is_relative_to(entry[1]))
    return f"{place}/{path.relative_to(folder).as_posix()}"


def build_page(handlers: PageHandlers) -> gr.Blocks:
    """Return the page: Gradio's server of files and calls, and one component, which is all of it
    that a visitor sees.
    """
    gr.set_static_paths([OWN / "js", OWN / "css", UI, *handlers.files])

    def leave(request: gr.Request) -> None:
        handlers.uploads.release_files(request.session_hash)
        if request.session_hash is not None:
            handlers.queue.end_visit(request.session_hash)

    # A visit's files are removed when it ends; old ones are searched every ten minutes.
    with gr.Blocks(
        title=messages.TITLE,
        fill_width=True,
        analytics_enabled=False,
        delete_cache=(600, MAX_AGE_S),
    ) as page:
        whole = page_component([_server_function(getattr(handlers, name)) for name in SERVED])
        # The waiting line is the queue's, which shows all their place: Gradio admits all of them.
        whole.run(
            handlers.run_job,
            None,
            whole,
            show_progress="hidden",
            concurrency_limit=None,
            trigger_mode="multiple",
            api_visibility="private",
        )
        page.unload(leave)
        publish_endpoints(handlers)
    # Gradio's templates name Gradio in previews of links; ours lie over them.
    theirs = routes.STATIC_TEMPLATE_LIB
    routes.templates.env.loader = FileSystemLoader([OWN / "templates", theirs, f"{theirs}/.."])
    page.queue(max_size=MAX_AT_ONCE)
    # It would poll for new events a thousand times a second, which costs an idle server 4 % of a
    # core.
    page._queue.sleep_when_free = 0.01
    return page


def launch_settings(
    page: gr.Blocks,
    handlers: PageHandlers,
    hosts: Sequence[str] = ("*",),
    frames: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the launch settings: nothing that strangers do not need is open or kept."""
    door = Middleware(
        RouteFilter,
        uploads=handlers.uploads,
        folders=handlers.folders,
        most_bytes=MAX_BYTES,
        hosts=hosts,
        frames=frames,
        events=frozenset(page.fns),
        components=frozenset(page.blocks),
        arguments=ARGUMENTS,
        places=PLACES,
        admitted=_is_admitted,
    )
    return {
        "css": QUIET,
        "favicon_path": FILES["logo"],
        "theme": gr.themes.Base(),
        "max_file_size": MAX_BYTES,
        "run_history": False,
        # Gradio's panel of its API has no name for what closes it; docs/api.md tells what it does.
        "footer_links": [],
        # The libraries' messages name folders; this page's own sentences are shown anyway.
        "show_error": False,
        # Gradio would call its own address once and give up after three seconds, which a busy
        # machine takes.
        "_frontend": False,
        # A Node server would stand before this app's own routes, and outlive it.
        "ssr_mode": False,
        "enable_monitoring": False,  # it would show all visitors who asked what, and how often
        "mcp_server": False,
        "state_session_capacity": SESSIONS,
        "app_kwargs": {"middleware": [door], "routes": chat.routes(handlers)},
    }


def _is_admitted(scope: Scope) -> bool:
    """Whether a request comes from a logged-in visitor, or no login is required."""
    app = scope["app"]
    cookies = HTTPConnection(scope).cookies
    names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
    return app.auth is None or any(cookies.get(name) in app.tokens for name in names)

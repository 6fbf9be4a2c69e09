"""The board: one Gradio component that holds the whole page. Python sends it JSON strings; its scripts draw.

The template is static, so that no model text ever passes a template engine; nothing nested is ever sent, since
Gradio's streaming difference corrupts nested lists that shrink. Knows nothing of what the strings say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import orjson

ROOT = Path(__file__).resolve().parents[2]
ASSETS = Path(__file__).resolve().parent / "assets"
SCRIPTS = sorted((ASSETS / "js").glob("*.js"))
STYLES = [ASSETS / "css" / name for name in ("theme.css", "frame.css", "ask.css", "race.css", "views.css")]
FILES = {
    "main": ASSETS / "js" / "main.js",
    "plotly": ROOT / "assets" / "ui" / "plotly-basic.min.js",
    "logo": ROOT / "assets" / "ui" / "logo.svg",
    "favicon": ROOT / "assets" / "ui" / "favicon.svg",
}

# Addresses are relative to where the page lives, so that it also works below a path of a larger site.
_ON_LOAD = """
const root = (window.gradio_config?.root ?? '').replace(/\\/?$/, '/');
const files = %s;
const url = (name) => new URL(root + 'gradio_api/file=' + files[name], document.baseURI).href;
import(url('main')).then((page) => page.mount(element, {
  server, upload, url, trigger: (name, data) => trigger(name, data),
  watch: (fn) => watch('value', () => fn(props.value)),
})).catch((fault) => { element.textContent = 'The page could not start: ' + fault.message; throw fault; });
// Events Python listens to: 'run'
"""

from gradio.events import Dependency

class Board(gr.HTML):
    """The page's one component. `server_functions` are what its scripts may call; `run` is its event."""

    def __init__(self, server_functions: Sequence[Callable[..., Any]], **kwargs: Any) -> None:
        super().__init__(
            value="",
            html_template="<div class='vl-boot' aria-busy='true'></div>",
            js_on_load=_ON_LOAD % _places(),
            apply_default_css=False,
            server_functions=list(server_functions),
            elem_id="specvl",
            **kwargs,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "string", "description": "JSON: a batch of events of a race"}
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block

    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component

def _as_json(value: Any) -> str:
    return orjson.dumps(value).decode()

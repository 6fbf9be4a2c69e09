"""The board: one Gradio component that holds the whole page. Python sends it JSON strings, its
scripts draw.

The template is static, so that no model text ever passes through a template engine. Nothing nested
is ever sent, since Gradio's streaming difference corrupts nested lists that shrink. Knows nothing
of the strings' content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import msgspec

from specvl_demo import places

OWN = places.PACKAGE / "ui" / "assets"
SCRIPTS = sorted((OWN / "js").glob("*.js"))
SHEETS = ("theme", "frame", "ask", "race", "views", "play")
STYLES = [OWN / "css" / f"{name}.css" for name in SHEETS]
FILES = {
    "main": OWN / "js" / "main.js",
    "plotly": places.ASSETS / "ui" / "plotly-basic.min.js",
    "logo": places.ASSETS / "ui" / "logo.svg",
    "favicon": places.ASSETS / "ui" / "favicon.svg",
}
PLACES = {"page": OWN, "ui": places.ASSETS / "ui", "examples": places.EXAMPLES}
"""The folders of the page's own files, by the names under which they are fetched."""

# Addresses are built from the site's own root, so that the page also works below a path of a larger
# site. Styles are linked, not passed to Gradio, which rewrites selectors. Scripts are preloaded all
# at once.
_ON_LOAD = """
const root = (window.gradio_config?.root ?? '').replace(/\\/?$/, '/');
const {files, scripts, styles} = %s;
const address = (path) => new URL(root + 'gradio_api/file=' + path, document.baseURI).href;
// Gradio's loader goes on asking for sixty frames a second after it has left the page (6.31), which
// takes a tenth of a core for nothing. Its next look at the clock fails and ends its loop, unheard.
const unheard = (event) => event.preventDefault();
const heed = () => { delete performance.now; removeEventListener('error', unheard); };
const now = performance.now.bind(performance);
addEventListener('error', unheard);
performance.now = () => {
  const [, , caller] = new Error().stack.split('\\n');
  if (!caller?.includes('statustracker')) return now();
  setTimeout(heed);
  throw new Error('the loader has left the page');
};
setTimeout(heed, 300);
const link = (rel, href) => new Promise((done) => {
  const node = document.createElement('link');
  Object.assign(node, {rel, href, onload: done, onerror: done});
  document.head.append(node);
});
scripts.forEach((path) => link('modulepreload', address(path)));
Promise.all(styles.map((path) => link('stylesheet', address(path))))
  .then(() => import(address(files.main)))
  .then((page) => page.mount(element, {
    server, upload, trigger, url: (name) => address(files[name]),
    watch: (fn) => watch('value', () => fn(props.value)),
  }))
  .catch((fault) => {
    element.textContent = 'The page could not start: ' + fault.message;
    throw fault;
  });
// The event that Python listens to: 'run'
"""


def board(server_functions: Sequence[Callable[..., Any]]) -> gr.HTML:
    """Return the page's one component. `server_functions` are what its scripts may call; `run` is
    its event.
    """
    named = {
        "files": {name: _name(path) for name, path in FILES.items()},
        "scripts": list(map(_name, SCRIPTS)),
        "styles": list(map(_name, STYLES)),
    }
    return gr.HTML(
        value="",
        # The page's styles are loaded later.
        html_template=(
            "<div class='vl-boot' aria-busy='true' style='padding: 20vh 0; text-align: center'>"
            "SpecVL is loading…</div>"
        ),
        js_on_load=_ON_LOAD % msgspec.json.encode(named).decode(),
        apply_default_css=False,
        server_functions=list(server_functions),
        elem_id="specvl",
    )


def _name(path: Path) -> str:
    """Return the name of a file for a visitor's browser: by its place."""
    place, folder = next(entry for entry in PLACES.items() if path.is_relative_to(entry[1]))
    return f"{place}/{path.relative_to(folder).as_posix()}"

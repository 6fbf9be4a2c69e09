"""A browser and a served page. The page runs in a separate process; a test fails on any console
error, any script fault, and any request that leaves this machine.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Error, Playwright, expect

from tests.shared.server import FAKE_PAGE, server
from tools import browser

PATIENCE_MS = 60_000  # a machine that is busy takes its time
expect.set_options(timeout=PATIENCE_MS)
LIVE = "specvl.race.meta.source === 'live'"
DESKTOP = {"width": 1440, "height": 900}
PHONE, ZOOMED = {"width": 390, "height": 844}, {"width": 720, "height": 450}
"""Sizes of the window; half of a desktop's is what it shows at 200 %."""
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and "browser" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker("ui")
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator:
    """Report all tests that lack a browser in one line of the summary."""
    report = yield
    if report.skipped and browser.MISSING in str(report.longrepr):
        report.longrepr = (browser.__file__, 1, browser.MISSING)
    return report


@pytest.fixture(scope="session")
def browser_type_launch_args(playwright: Playwright) -> dict:
    path = browser.find(playwright)
    if path is None:
        pytest.skip(browser.MISSING)
    return {"args": browser.FLAGS + CAMERA, "executable_path": path}


@pytest.fixture(scope="session")
def browser_context_args() -> dict:
    return {
        "viewport": DESKTOP,
        "service_workers": "block",
        "reduced_motion": "reduce",  # races are shown at once: a test that wants to see one says so
    }


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page over made-up records, at eight times their speed."""
    folder = tmp_path_factory.mktemp("page")
    with server(FAKE_PAGE, folder, "--folder", str(folder), "--rate", "8") as (address, _):
        yield address


@pytest.fixture(scope="session")
def visit(browser, browser_context_args: dict) -> Iterator:
    """One browser's memory for all tests: what was loaded once is not loaded again."""
    context = browser.new_context(**browser_context_args)
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def page(visit) -> Iterator:
    """The page of a new visitor. All tests use one tab, so that it compiles scripts only once. A
    tab that no longer responds is closed, and the next test gets another.
    """
    page = visit.pages[0] if visit.pages else visit.new_page()
    yield page
    for other in visit.pages[1:]:
        other.close()
    try:
        if page.url.startswith("http"):
            page.evaluate("""async () => {
              const { visit } = window.specvl ?? {};
              // Nothing is kept on the way out.
              if (visit) { clearTimeout(visit.keeping); visit.keeping = null; }
              await window.specvl?.archive.forget();
              localStorage.clear();
              sessionStorage.clear();
            }""")
        page.goto("about:blank")
        page.emulate_media(reduced_motion="reduce")
        page.set_viewport_size(DESKTOP)
    except Error:
        page.close()
        raise


@pytest.fixture
def opened(page, url: str) -> Iterator:
    """The page, ready, watched: no console error, no script fault, no request to anywhere else."""
    yield from watch(page, url)


def watch(page, url: str) -> Iterator:
    """Open the page and hold it to what is always true."""
    faults = []
    elsewhere = []

    def said(message) -> None:
        if message.type == "error":
            faults.append(message.text)

    def failed(fault) -> None:
        faults.append(str(fault))

    def asked(request) -> None:
        if not request.url.startswith((url, "data:", "blob:")):
            elsewhere.append(request.url)

    listeners = {"console": said, "pageerror": failed, "request": asked}
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(url)
    ready(page)
    yield page
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert not faults, faults
    assert not elsewhere, elsewhere


def ready(page) -> None:
    """Wait until a page that was opened or loaded anew can be used."""
    page.wait_for_function("window.specvl?.ready")


def reload(page) -> None:
    """Load the page anew, as a visitor does."""
    page.reload()
    ready(page)


def press(page, name: str, exact: bool = False) -> None:
    """Click a button of the page, or of a part of it."""
    page.get_by_role("button", name=name, exact=exact).click()


def save(page, choice: str) -> None:
    """Choose something of the menu of what can be saved."""
    press(page, "Save", exact=True)
    press(page, choice)


def note_sent(page) -> None:
    """Make the page record its requests to the server in `window.sent`."""
    page.evaluate(
        """() => {
          const {api} = specvl.runner, send = api.trigger;
          api.trigger = (name, asked) => { window.sent = asked; send(name, asked); };
        }"""
    )

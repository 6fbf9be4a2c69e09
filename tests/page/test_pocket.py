"""The main road on the shipped models: the page as `python app.py` serves it, real answers."""

import re
from collections.abc import Iterator
from functools import partial

import pytest
from gradio_client import Client, handle_file
from playwright.sync_api import expect

from specvl_demo.places import EXAMPLES
from tests.page.conftest import watch
from tests.page.test_race import run_race


@pytest.fixture
def real(page, served: tuple[str, int]) -> Iterator:
    yield from watch(page, served[0])


run = partial(run_race, timeout=300_000)


TOLD = """() => {
  const lane = specvl.race.list[1];
  return [lane.begin.method, lane.begin.settings, lane.totalsAfter(Infinity).tau];
}"""


@pytest.mark.slow
def test_an_example_is_what_run_gives(real):
    """Settings and τ of every recorded race of a paper on drawings are those of the same race run
    here and now, with the form as the example fills it.
    """
    examples = real.evaluate(
        "specvl.catalog.examples.filter((e) => e.pair === 'pocket' && !e.fails &&"
        " specvl.catalog.papers.includes(e.methods[0])).map((e) => e.id)"
    )
    assert len(examples) >= 5
    for example in examples:
        real.locator(f"[data-example={example}]").evaluate("(tile) => tile.click()")
        real.wait_for_function("(id) => specvl.race.meta.example === id", arg=example)
        method, settings, tau = real.evaluate(TOLD)
        run(real)
        now, chosen, measured = real.evaluate(TOLD)
        assert now == method and chosen.items() <= settings.items(), example
        assert measured == pytest.approx(tau, rel=0.1), example


def test_an_example_is_described_twice_and_equally_then_drawn(real):
    """Two clicks: the plain model and a method describe the shipped picture rightly and equally.
    Sampled, the inspector shows both models' shares and how near the second token came."""
    real.locator("[data-example=scene]").click()
    run(real)
    expect(real.locator(".vl-verdict")).to_contain_text("same answer, token for token")
    plain, drafted = real.evaluate("specvl.race.list.map((lane) => lane.text)")
    assert plain == drafted
    for thing in ("red star", "blue circle", "green arrow", "yellow heart", "purple moon"):
        assert thing in plain, plain
    assert real.evaluate("specvl.race.now(specvl.race.list[1]).tau") > 1.5
    assert real.locator(".vl-lane[data-lane='1'] .tk.draft").count() > 10
    real.locator(".vl-lane[data-lane='1'] .tk.draft", has_text="star").first.click()
    card = real.locator(".vl-race .vl-inspector")
    expect(card.locator(".vl-candidates tr.chosen")).to_have_count(1)
    expect(card.locator("canvas.hidden")).to_be_visible()
    real.evaluate("specvl.form.request.sampling = {temperature: 1.5, seed: 3}")
    run(real)
    for origin in ("draft", "target"):
        real.evaluate(
            """(origin) => {
                const lane = specvl.race.list[1];
                const asked = (t) => lane.rounds[t.round].notes.draws.q[t.at] !== null;
                const token = lane.tokens.findIndex((t) => t.origin === origin && asked(t));
                specvl.race.select({ lane: lane.name, token });
            }""",
            origin,
        )
        expect(card.locator(".vl-draw b")).to_have_count(2)
        expect(card.locator(".vl-draws")).to_contain_text("nats behind")
        expect(card.locator(".vl-draws")).to_contain_text("After temperature and")


CONTROLS = """() => [...document.querySelectorAll('button, a, input, select, textarea, summary')]
  .filter((n) => n.checkVisibility() && !n.matches('.vl-hidden'))
  .filter((n) => n.getBoundingClientRect().top < innerHeight).length"""

OFFERED = """() => [...document.querySelectorAll('.vl-trays > .vl-examples > *')].map((tile) => {
  const { methods, fails } = specvl.catalog.examples.find((e) => e.id === tile.dataset.example);
  return [methods[0], fails];
})"""


def test_an_example_that_fails_is_marked_and_gives_its_reason(real):
    """The page begins with a race that was answered rightly, among 45 controls at most; an example
    for every paper and a failure are offered, which is told above its race; a recorded method's
    settings come into the form with its tile."""
    assert real.evaluate(CONTROLS) <= 45
    known = real.evaluate("specvl.catalog.examples.filter((e) => !e.fails)[0]")
    assert real.evaluate("specvl.race.meta.example") == known["id"]
    chosen = real.evaluate("specvl.form.request.settings")
    assert chosen.get(known["methods"][0], {}) == known.get("settings", {})
    offered = real.evaluate(OFFERED)
    assert [method for method, _ in offered[:5]] == real.evaluate("specvl.catalog.papers")
    assert [bool(fails) for _, fails in offered] == [False] * 5 + [True]
    # Of the visitor's own changes, those that differ from what the pair has by itself count.
    changed = real.locator(".vl-parameters > summary .vl-changed")
    expect(changed).to_be_empty()
    panel = real.locator(".vl-settings .vl-method-panel").first
    panel.evaluate(
        """(panel) => {
          const labels = [...panel.querySelectorAll('label')];
          const input = labels.find((label) => label.textContent === 'maximum depth').control;
          input.value = 7;
          input.dispatchEvent(new Event('change', { bubbles: true }));
        }"""
    )
    expect(changed).to_have_text("1 changed")
    panel.get_by_text("Reset all", exact=True).evaluate("(button) => button.click()")
    expect(changed).to_be_empty()
    clip = real.evaluate("specvl.catalog.examples.find((e) => e.id === 'clip')")
    real.locator("[data-example=clip]").evaluate("(tile) => tile.click()")
    expect(changed).to_have_text(f"as in “{clip['title']}”")
    expect(real.locator(".vl-settings .vl-changed").first).to_have_text(f"as in “{clip['title']}”")
    tile = real.locator("[data-example=count]")
    expect(tile).to_have_attribute("title", re.compile("LVSpec relaxed too far"))
    expect(tile.locator(".vl-tile-note.fails")).to_have_text("model errs")
    tile.click()
    expect(real.get_by_role("tabpanel").locator(".vl-scope")).to_contain_text("three stars")


def test_a_program_has_an_answer_begun_with_its_own_words(served: tuple[str, int]):
    """Begun as the model begins, the answer goes on as it does; begun otherwise, from there."""
    client = Client(served[0], verbose=False)
    picture = handle_file(str(EXAMPLES / "scene.png"))
    asked = {"prompt": "Describe the picture.", "image": [picture], "max_new_tokens": 24}

    def said(**more: str) -> str:
        return client.predict(**asked, **more, method="sage", api_name="/generate")["text"]

    whole = said()
    begun = "".join(re.findall(r"\s*\S+", whole)[:4])
    assert whole.startswith(begun) and len(begun) > 8
    rest = whole.removeprefix(begun)
    assert said(answer_prefix=begun).startswith(rest)
    other = client.predict(**asked, methods="sage", answer_prefix="No", api_name="/race")
    assert len({lane["text"] for lane in other["lanes"]}) == 1
    assert not other["lanes"][0]["text"].startswith(begun)

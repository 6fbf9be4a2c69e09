"""The way in without a paper: the race told as a story; and what the target thinks of its
answer.
"""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.test_access import BAD, RULES
from tests.page.test_race import finish_replay, run_race

DOUBTFUL = 78
"""The seed of a run of whose answer the made-up target is not sure."""
PHONE = {"width": 390, "height": 844}


def hangs_over(page, dialog: str) -> bool:
    return page.evaluate(
        "(name) => document.querySelector(name).scrollWidth > innerWidth"
        " || document.documentElement.scrollWidth > innerWidth",
        dialog,
    )


def sound(page, dialog: str) -> None:
    """axe finds nothing serious in a dialog, light and dark."""
    for dark in (False, True):
        page.evaluate("(on) => document.body.classList.toggle('dark', on)", dark)
        found = Axe().run(page, dialog, RULES).response["violations"]
        bad = {one["id"]: one["nodes"][0]["html"][:160] for one in found if one["impact"] in BAD}
        assert not bad, bad
    page.evaluate("document.body.classList.remove('dark')")


def test_a_race_is_told_as_a_story_step_by_step(opened):
    """Keys and taps lead through every round as it was recorded; the last words are the race's own
    sentence; Escape leaves, and the button that opened the story has the focus again.
    """
    finish_replay(opened)
    headline = opened.locator(".vl-says .vl-headline").inner_text()
    opened.get_by_role("button", name="Explain this race").click()
    story = opened.get_by_role("dialog", name="The race as a story")
    caption, text = story.locator(".vl-story-caption"), story.locator(".vl-story-text")
    expect(story).to_contain_text("What is in the picture?")
    expect(story.locator("img")).to_have_count(1)
    expect(caption).to_contain_text("a small model guesses ahead")
    drafted, kept, own = opened.evaluate(
        "(({tree, path, tokens}) => [tree.tokens.length - 1, path.length - 1, tokens.at(-1).text])"
        "(specvl.race.focused.rounds[0])"
    )
    number = ["none", "one", "two", "three", "four", "five", "six"]
    opened.keyboard.press("ArrowRight")
    expect(caption).to_have_text(f"A small model guesses {number[drafted]} tokens.")
    expect(text.locator(".guess").first).to_be_visible()
    opened.keyboard.press("ArrowRight")
    expect(caption).to_contain_text(f"checks them all at once and keeps {number[kept]}, ")
    expect(caption).to_contain_text(f"“{own.strip()}”")
    expect(text.locator(".draft")).to_have_count(kept)
    expect(text.locator(".guess")).to_have_count(0)
    opened.keyboard.press("ArrowLeft")
    expect(caption).to_contain_text("guesses")
    text.click()
    expect(caption).to_contain_text("checks")
    opened.set_viewport_size(PHONE)
    assert not hangs_over(opened, ".vl-story")
    sound(opened, ".vl-story")
    opened.keyboard.press("End")
    expect(caption).to_have_text(headline)
    assert text.inner_text().strip() == opened.evaluate("specvl.race.focused.text").strip()
    expect(story.get_by_role("button", name="Next")).to_be_disabled()
    opened.keyboard.press("Escape")
    expect(story).to_be_hidden()
    expect(opened.get_by_role("button", name="Explain this race")).to_be_focused()


def test_what_the_target_thinks_of_its_answer_stands_under_it(opened):
    """In words, with how often such answers were right; nothing where the records tell nothing,
    and nothing before the answer is whole.
    """
    finish_replay(opened)
    sure = opened.locator(".vl-sure")
    expect(sure).to_be_hidden()
    opened.evaluate(f"specvl.ask.request.sampling.seed = {DOUBTFUL}")
    opened.evaluate("specvl.ask.request.sampling.max_new_tokens = 24")
    run_race(opened)
    expect(sure).to_have_text(
        "The large model is guessing: 27 % of such answers were right on photographs held out of"
        " its training."
    )
    under, lane = sure.bounding_box(), opened.locator(".vl-lane").first.bounding_box()
    assert under["y"] >= lane["y"] + lane["height"]
    opened.evaluate("specvl.race.setHead(0)")
    expect(sure).to_be_hidden()
    opened.evaluate("specvl.race.setHead(null)")
    expect(sure).to_be_visible()
    sound(opened, ".vl-stage")
    opened.evaluate("specvl.ask.request.sampling.seed = 1")
    run_race(opened)
    expect(sure).to_be_hidden()

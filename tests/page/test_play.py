"""The two ways in without a paper: the guessing game over recorded races, and the race told as a
story.
"""

from __future__ import annotations

import re

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.conftest import ready
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
    opened.get_by_role("button", name="As a story").click()
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
    expect(opened.get_by_role("button", name="As a story")).to_be_focused()


def test_a_visitor_guesses_words_against_the_drafter(opened):
    """By keys alone: the answer so far, a few words, then what target and drafter took, and a score
    that is the count of what was right. The words are those of the recorded race.
    """
    finish_replay(opened)
    opened.get_by_role("tab", name="Learn").click()
    opened.get_by_role("tabpanel").get_by_role("button", name="Guess along").click()
    game = opened.get_by_role("dialog", name="Guess with the drafter")
    options, result = game.locator(".vl-guess-options button"), game.get_by_role("status")
    expect(options.first).to_be_focused()
    turns = opened.evaluate(
        "specvl.guess.turns.map(({probs, ...turn}) => ({...turn, words: [...probs.keys()]}))"
    )
    tokens = opened.evaluate("specvl.guess.lane.tokens.map((token) => token.text)")
    you = drafter = 0
    for number, turn in enumerate(turns):
        words = turn["words"]
        assert words == sorted(words, key=str.lower) and 3 <= len(words) <= 4
        assert turn["target"] == tokens[turn["at"]].strip()
        expect(game.locator(".vl-guess-text")).to_have_text("".join(tokens[: turn["at"]]).strip())
        expect(options).to_have_count(len(words))
        pick = number % len(words)
        opened.keyboard.press(str(pick + 1))
        you += words[pick] == turn["target"]
        drafter += turn["drafter"] == turn["target"]
        expect(result).to_contain_text(f"the large model writes “{turn['target']}”")
        expect(options.nth(words.index(turn["target"]))).to_contain_text("large model")
        expect(options.nth(words.index(turn["drafter"]))).to_contain_text("drafter")
        expect(options.nth(pick)).to_contain_text("you")
        score = f"You {you} · drafter {drafter} · {number + 1} of {len(turns)} played"
        expect(game.locator(".vl-guess-score")).to_have_text(score)
        opened.keyboard.press(str(pick + 1))  # a second answer does not count
        if number == 0:
            opened.set_viewport_size(PHONE)
            assert not hangs_over(opened, ".vl-guessing")
            expect(game.get_by_role("button", name="Next")).to_be_in_viewport()
            sound(opened, ".vl-guessing")
        opened.keyboard.press("Enter")
    assert len(turns) >= 4
    expect(result).to_contain_text(
        f"You guessed {you} of {len(turns)} words, the drafter {drafter}."
    )
    game.get_by_role("button", name="Watch this race").click()
    expect(game).to_be_hidden()
    expect(opened.locator(".vl-race-head .vl-badge")).to_have_text(re.compile("Recorded"))


def test_learn_names_the_ways_that_it_shows_and_keys_only_where_there_are_some(browser, url):
    """One line a button; without a finished race there is no story. A phone is told of no keys."""
    for touch in (False, True):
        context = browser.new_context(viewport=PHONE, has_touch=touch, is_mobile=touch)
        page = context.new_page()
        page.goto(url)
        ready(page)
        finish_replay(page)
        page.get_by_role("tab", name="Learn").click()
        ways = page.locator(".vl-play li:visible")
        expect(ways).to_have_count(2)
        page.evaluate("specvl.race.clear()")
        expect(ways).to_have_count(1)
        expect(ways).to_contain_text("against the drafter")
        page.locator(".vl-play").get_by_role("button", name="Guess along").click()
        keys = page.locator(".vl-guessing :is(.vl-keys, kbd):visible")
        expect(page.locator(".vl-guess-options button").first).to_be_visible()
        assert bool(keys.count()) is not touch
        context.close()


def test_the_game_is_played_by_touch_and_goes_on_to_another_picture(opened):
    finish_replay(opened)
    opened.get_by_role("button", name="Guess along").click()
    game = opened.get_by_role("dialog", name="Guess with the drafter")
    game.locator(".vl-guess-options button").nth(1).click()
    expect(game.locator(".vl-guess-score")).to_contain_text("1 of")
    game.get_by_role("button", name="Another picture").click()
    expect(game.locator(".vl-guess-question")).to_have_text("Describe everything.")
    expect(game.locator(".vl-guess-score")).to_contain_text("You 0 · drafter 0 · 0 of")
    opened.keyboard.press("Escape")
    expect(game).to_be_hidden()


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

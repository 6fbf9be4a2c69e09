"""Several visitors at once: the line, leaving, and what a program gets from the same page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from playwright.sync_api import expect

from tests.contract.test_cli import FIELDS, RACE_FIELDS
from tests.page.conftest import ready, reload


@pytest.fixture
def second(opened, visit, url: str) -> Iterator:
    """Another visitor: a page of its own."""
    page = visit.new_page()
    page.goto(url)
    ready(page)
    yield page
    page.close()


def begin_long_run(page) -> None:
    page.evaluate("specvl.ask.request.sampling.max_new_tokens = 600")
    page.locator("#vl-run").click()
    page.wait_for_function(
        "specvl.race.meta.source === 'live' && specvl.race.list[0]?.tokens.length > 3"
    )


def test_the_second_visitor_sees_the_place_in_line_may_leave_it_and_is_served(opened, second):
    """While one computes the other is told to wait; Stop while waiting ends the waiting
    alone; Stop of the first lets the second in. Each keeps its form."""
    begin_long_run(opened)
    second.locator("#vl-run").click()
    second.locator("#vl-question").fill("In the second tab?")
    waiting = "Waiting: you are next."
    expect(second.locator("#vl-status")).to_have_text(waiting)
    second.locator("#vl-stop").click()
    expect(second.locator("#vl-run")).to_be_enabled()
    assert opened.evaluate("specvl.ask.running")
    second.locator("#vl-run").click()
    expect(second.locator("#vl-status")).to_have_text(waiting)
    opened.locator("#vl-stop").click()
    second.wait_for_function(
        "!specvl.ask.running && specvl.race.meta.source === 'live' && specvl.race.finished"
    )
    reload(second)
    reload(opened)
    for page, question in ((second, "In the second tab?"), (opened, "What is in the picture?")):
        expect(page.locator("#vl-question")).to_have_value(question)


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(url, verbose=False)


def test_programs_get_the_fields_of_the_command_line(client: Client, tmp_path_factory):
    """`generate` and `race` are named endpoints; a picture may be sent along."""
    told = client.predict(prompt="What is this?", method="tabed", api_name="/generate")
    assert sorted(told) == sorted(FIELDS)
    assert told["method"] == "tabed" and told["n_tokens"] == len(told["token_ids"])
    picture = next(tmp_path_factory.getbasetemp().glob("page*/scene.png"))
    told = client.predict(
        prompt="", methods="tabed,lvspec", image=[handle_file(str(picture))], api_name="/race"
    )
    assert [lane["method"] for lane in told["lanes"]] == ["ar", "tabed", "lvspec"]
    assert all(sorted(lane) == sorted([*FIELDS, *RACE_FIELDS]) for lane in told["lanes"])


def test_programs_are_refused_in_the_pages_sentence(client: Client):
    with pytest.raises((AppError, ValueError), match="There is no method 'nonsense'"):
        client.predict(prompt="x", method="nonsense", api_name="/generate")
    with pytest.raises((AppError, ValueError), match="beginning has 2000 bytes; at most 1024"):
        client.predict(prompt="x", methods="tabed", answer_prefix="x" * 2000, api_name="/race")

"""What goes in: pictures by every way, several in one message, earlier questions, waiting; and what
several visitors at once and programs send.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from playwright.sync_api import expect

from specvl_demo.places import EXAMPLES
from tests.contract.test_cli import FIELDS, RACE_FIELDS
from tests.page.conftest import LIVE, note_sent, press, ready, reload
from tests.page.test_files import PNG, upload
from tests.page.test_race import FINISHED, begin_long_run, choose, run_race


def thumbs(page):
    return page.locator(".vl-thumbs li")


def test_a_pasted_picture_another_and_a_clip_in_one_message(opened, tmp_path: Path):
    """Pasted anywhere, or picked two at once: each is shown as what it is, all are asked about."""
    opened.evaluate(
        """(hex) => {
          const bytes = Uint8Array.from(hex.match(/../g), (b) => parseInt(b, 16));
          const data = new DataTransfer();
          data.items.add(new File([bytes], 'pasted.png', {type: 'image/png'}));
          const how = {clipboardData: data, bubbles: true, cancelable: true};
          document.body.dispatchEvent(new ClipboardEvent('paste', how));
        }""",
        PNG,
    )
    expect(thumbs(opened).locator("img")).to_have_attribute("alt", "pasted.png")
    (tmp_path / "a.png").write_bytes(bytes.fromhex(PNG))
    opened.locator("#vl-files").set_input_files([tmp_path / "a.png", EXAMPLES / "clip.webm"])
    expect(thumbs(opened)).to_have_count(3)
    expect(thumbs(opened).nth(2).locator("video")).to_have_count(1)
    expect(thumbs(opened).nth(2)).to_contain_text("clip")
    note_sent(opened)
    run_race(opened)
    sent = opened.evaluate("window.sent.media.map((item) => [item.name, item.kind])")
    assert sent == [["pasted.png", "image"], ["a.png", "image"], ["clip.webm", "video"]]


def test_a_picture_from_the_camera_or_why_there_is_none(opened, tmp_path: Path):
    """The camera's dialog shows what it sees; one press adds the picture; the camera is let go.
    Where a picture cannot come in, a sentence says why and what else there is."""
    press(opened, "Camera", exact=True)
    dialog = opened.get_by_role("dialog", name="Camera")
    expect(dialog.locator("video")).to_be_visible()
    opened.wait_for_function("document.querySelector('dialog[open] video')?.videoWidth > 0")
    opened.evaluate(
        "window.track = document.querySelector('dialog[open] video').srcObject.getTracks()[0]"
    )
    press(dialog, "Take the picture")
    expect(thumbs(opened).locator("img")).to_have_attribute("alt", "camera.jpg")
    opened.wait_for_function("document.querySelector('.vl-thumbs li:last-child img').naturalWidth")
    expect(dialog).to_have_count(0)
    assert opened.evaluate("window.track.readyState") == "ended"
    opened.evaluate(
        "() => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new Error('no')); }"
    )
    press(opened, "Camera", exact=True)
    note = opened.locator(".vl-media-note")
    expect(note).to_have_text(
        "No camera could be used. Allow it for this page, or upload a picture."
    )
    opened.evaluate("() => { specvl.form.files.upload = () => Promise.reject(Error('gone')); }")
    upload(opened, tmp_path / "a.png")
    expect(opened.locator(".vl-refused")).to_contain_text("a.png could not be uploaded.")
    expect(thumbs(opened)).to_have_count(1)


def test_ask_again_edit_and_clear(opened):
    """A follow-up adds a turn; asked again; edited, the rest is dropped; in a conversation Enter
    goes on with it. What is sent is tested in tests/js/form.test.js.
    """
    question = opened.locator("#vl-question")
    run_race(opened)
    question.fill("And below it?")
    opened.get_by_label("Ask as a follow-up").check()
    expect(opened.locator(".vl-turn")).to_contain_text(
        "Continues the conversation, with 1 earlier question and 1 picture."
    )
    expect(opened.locator("label[for=vl-question]")).to_have_text("Follow-up")
    expect(opened.locator(".vl-stage")).not_to_have_class(re.compile("outdated"))
    question.press("Enter")
    expect(opened.locator(".vl-turns li")).to_have_count(1)
    opened.wait_for_function(f"!specvl.form.running && {FINISHED}")
    expect(opened.locator(".vl-turns li")).to_be_in_viewport()
    question.fill("And its size?")
    expect(opened.locator(".vl-turn")).to_contain_text("2 earlier questions and 1 picture")
    question.fill("And below it?")
    press(opened, "Ask a follow-up")
    expect(opened.locator(".vl-turns li")).to_have_count(2)
    expect(opened.locator(".vl-notice")).to_contain_text("Type your next question and press Run.")
    expect(question).to_be_focused()
    expect(question).to_have_attribute("placeholder", "Ask about the same pictures")
    note_sent(opened)
    press(opened, "Ask question 2 again")
    opened.wait_for_function("window.sent")
    opened.wait_for_function("!specvl.form.running")
    sent = opened.evaluate("window.sent")
    assert sent["question"] == "And below it?" and len(sent["history"]) == 1
    press(opened, "Edit question 1")
    expect(question).to_have_value("What is in the picture?")
    expect(question).to_be_focused()
    expect(thumbs(opened)).to_have_count(1)
    expect(opened.locator(".vl-conversation")).to_be_hidden()
    run_race(opened)
    question.fill("And its colour?")
    press(opened, "Ask a follow-up")
    expect(question).to_have_value("And its colour?")  # typed already
    expect(thumbs(opened)).to_have_count(0)  # they are in the conversation
    press(opened, "New conversation")
    expect(thumbs(opened)).to_have_count(1)  # to be asked about anew
    expect(opened.locator(".vl-conversation")).to_be_hidden()
    assert opened.evaluate("specvl.form.request.history") == []
    expect(question).to_have_attribute("placeholder", "Describe the picture.")


def test_another_question_or_none_is_asked_by_itself(opened):
    """With the picture and nothing before it, and said without a jump of what stands below; as a
    follow-up only where one says so. An empty one says what it asks, also as a turn; see
    tests/js/form.test.js.
    """
    question, note = opened.locator("#vl-question"), opened.locator(".vl-turn")
    untyped, follow = (
        opened.locator(".vl-ask .vl-line .vl-help"),
        opened.get_by_label("Ask as a follow-up"),
    )
    run_race(opened)
    place = "document.querySelector('.vl-ask fieldset').getBoundingClientRect().top"
    before = opened.evaluate(place)
    question.fill("How many are red?")
    expect(note).to_contain_text("Asked by itself.")
    expect(opened.locator("label[for=vl-question]")).to_have_text("Question")
    assert abs(opened.evaluate(place) - before) < 4
    follow.check()
    expect(note).to_contain_text("with 1 earlier question and 1 picture.")
    follow.uncheck()
    expect(note).to_contain_text("Asked by itself.")
    question.fill("")
    expect(untyped).to_have_text("Empty: the grey words are asked")
    expect(question).to_have_attribute("placeholder", "Describe the picture.")
    question.press("Enter")
    expect(opened.locator(".vl-conversation")).to_be_hidden()
    expect(opened.locator(".vl-question")).to_have_text("Describe the picture.")
    press(opened, "Ask a follow-up")
    expect(opened.locator(".vl-turns b")).to_have_text("Describe the picture.")
    expect(untyped).to_have_class(re.compile("keys"))


def test_a_new_picture_begins_a_new_conversation_unless_one_says_otherwise(opened, tmp_path: Path):
    """And without a picture none is carried along."""
    note_sent(opened)
    for keep in (False, True):
        choose(opened, "scene", 2)
        run_race(opened)
        upload(opened, tmp_path / "new.png")
        if keep:
            opened.get_by_label("Ask as a follow-up").check()
        run_race(opened)
        sent = opened.evaluate("window.sent")
        assert [item["name"] for item in sent["media"]] == ["new.png"]
        assert len(sent["history"]) == int(keep)
    press(opened, "New conversation")
    press(opened, "Remove new.png")
    opened.locator("#vl-question").fill("What is the capital of France?")
    run_race(opened)
    sent = opened.evaluate("window.sent")
    assert sent["media"] == sent["history"] == []


@pytest.fixture
def second(opened, visit, url: str) -> Iterator:
    """Another visitor: a page of its own."""
    page = visit.new_page()
    page.goto(url)
    ready(page)
    yield page
    page.close()


def test_the_second_visitor_sees_the_place_in_line_may_leave_it_and_is_served(opened, second):
    """While one computes the other is told to wait; Stop while waiting ends the waiting
    alone; Stop of the first lets the second in. Each keeps its form."""
    begin_long_run(opened)
    second.locator("#vl-run").click()
    second.locator("#vl-question").fill("In the second tab?")
    waiting = "Waiting: you are next."
    moving = second.get_by_role("progressbar", name="Waiting for the first words")
    expect(second.locator("#vl-status")).to_have_text(waiting)
    expect(moving).to_be_visible()
    second.locator("#vl-stop").click()
    expect(second.locator("#vl-run")).to_be_enabled()
    expect(moving).to_be_hidden()
    assert opened.evaluate("specvl.form.running")
    second.locator("#vl-run").click()
    expect(second.locator("#vl-status")).to_have_text(waiting)
    opened.locator("#vl-stop").click()
    second.wait_for_function(f"!specvl.form.running && {LIVE} && specvl.race.finished")
    reload(second)
    reload(opened)
    for page, question in ((second, "In the second tab?"), (opened, "What is in the picture?")):
        expect(page.locator("#vl-question")).to_have_value(question)


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(url, verbose=False)


def test_programs_get_the_fields_of_the_command_line(client: Client):
    """`generate` and `race` are named endpoints; a picture may be sent along."""
    told = client.predict(prompt="What is this?", method="tabed", api_name="/generate")
    assert sorted(told) == sorted(FIELDS)
    assert told["method"] == "tabed" and told["n_tokens"] == len(told["token_ids"])
    picture = EXAMPLES / "scene.png"
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

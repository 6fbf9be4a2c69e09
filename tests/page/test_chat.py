"""What goes in: pictures by every way, several in one message, earlier questions, parameters,
waiting.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from specvl_demo.question import MAX_SHOWN, MAX_TURNS
from tests.page.conftest import ROOT, note_sent
from tests.page.test_files import PNG
from tests.page.test_race import FINISHED, choose, run_race


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
    opened.locator("#vl-files").set_input_files(
        [tmp_path / "a.png", ROOT / "examples" / "clip.webm"]
    )
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
    opened.get_by_role("button", name="Camera", exact=True).click()
    dialog = opened.get_by_role("dialog", name="Camera")
    expect(dialog.locator("video")).to_be_visible()
    opened.wait_for_function("document.querySelector('dialog[open] video')?.videoWidth > 0")
    opened.evaluate(
        "window.track = document.querySelector('dialog[open] video').srcObject.getTracks()[0]"
    )
    dialog.get_by_role("button", name="Take the picture").click()
    expect(thumbs(opened).locator("img")).to_have_attribute("alt", "camera.jpg")
    opened.wait_for_function(
        "document.querySelector('.vl-thumbs li:last-child img').naturalWidth > 0"
    )
    expect(dialog).to_have_count(0)
    assert opened.evaluate("window.track.readyState") == "ended"
    opened.evaluate(
        "() => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new Error('no')); }"
    )
    opened.get_by_role("button", name="Camera", exact=True).click()
    note = opened.locator(".vl-media-note")
    expect(note).to_have_text(
        "No camera could be used. Allow it for this page, or upload a picture."
    )
    opened.evaluate(
        "() => { specvl.ask.well.api.upload = () => Promise.reject(new Error('gone')); }"
    )
    (tmp_path / "a.png").write_bytes(bytes.fromhex(PNG))
    opened.locator("#vl-files").set_input_files(tmp_path / "a.png")
    expect(opened.locator(".vl-refused")).to_contain_text("a.png could not be uploaded.")
    expect(thumbs(opened)).to_have_count(1)


def test_ask_again_edit_and_clear(opened):
    """Enter adds a turn, which carries what went before, pictures too; asked again; edited, the
    rest is dropped.
    """
    run_race(opened)
    note_sent(opened)
    opened.locator("#vl-question").fill("And below it?")
    expect(opened.locator(".vl-turn")).to_contain_text(
        "Continues the conversation: 1 earlier question and its picture are included."
    )
    expect(opened.locator("label[for=vl-question]")).to_have_text("Follow-up question")
    expect(opened.locator(".vl-stage")).not_to_have_class(re.compile("outdated"))
    opened.locator("#vl-question").press("Enter")
    opened.wait_for_function("window.sent")
    opened.wait_for_function(f"!specvl.ask.running && {FINISHED}")
    expect(opened.locator(".vl-turns li")).to_have_count(1)
    expect(opened.locator(".vl-turns li")).to_be_in_viewport()
    sent = opened.evaluate("window.sent")
    assert sent["question"] == "And below it?" and sent["media"] == []
    (turn,) = sent["history"]
    assert turn["question"] == "What is in the picture?" and turn["answer"].startswith(
        "There are five"
    )
    assert [item["name"] for item in turn["media"]] == ["scene.png"]
    opened.get_by_role("button", name="Ask a follow-up").click()
    expect(opened.locator(".vl-turns li")).to_have_count(2)
    expect(opened.locator("#vl-question")).to_be_focused()
    expect(opened.locator("#vl-question")).to_have_attribute(
        "placeholder", "Ask about the same pictures"
    )
    opened.evaluate("window.sent = null")
    opened.get_by_role("button", name="Ask question 2 again").click()
    opened.wait_for_function("window.sent")
    opened.wait_for_function("!specvl.ask.running")
    sent = opened.evaluate("window.sent")
    assert sent["question"] == "And below it?" and len(sent["history"]) == 1
    opened.get_by_role("button", name="Edit question 1").click()
    expect(opened.locator("#vl-question")).to_have_value("What is in the picture?")
    expect(opened.locator("#vl-question")).to_be_focused()
    expect(thumbs(opened)).to_have_count(1)
    expect(opened.locator(".vl-conversation")).to_be_hidden()
    run_race(opened)
    opened.locator("#vl-question").fill("And its colour?")
    opened.get_by_role("button", name="Ask a follow-up").click()
    expect(opened.locator("#vl-question")).to_have_value("And its colour?")  # typed already
    expect(thumbs(opened)).to_have_count(0)  # they are in the conversation
    opened.get_by_role("button", name="New conversation").click()
    expect(opened.locator(".vl-conversation")).to_be_hidden()
    assert opened.evaluate("specvl.ask.request.history") == []
    expect(opened.locator("#vl-question")).to_have_attribute(
        "placeholder", "What is in the picture?"
    )


def test_a_question_on_the_same_picture_can_begin_a_new_conversation(opened):
    """The button beside the note keeps what was typed, and the picture; earlier questions are not
    sent.
    """
    run_race(opened)
    note_sent(opened)
    opened.locator("#vl-question").fill("And below it?")
    opened.locator(".vl-turn").get_by_role("button", name="New conversation").click()
    expect(opened.locator("#vl-question")).to_have_value("And below it?")
    expect(opened.locator("label[for=vl-question]")).to_have_text("Question")
    expect(opened.locator(".vl-turn")).to_be_hidden()
    run_race(opened)
    sent = opened.evaluate("window.sent")
    assert sent["history"] == [] and sent["question"] == "And below it?"
    assert [item["name"] for item in sent["media"]] == ["scene.png"]


def test_an_empty_question_says_what_it_asks(opened):
    """Before it is run, over its race, and as a turn; on the last picture it begins anew."""
    note = opened.locator(".vl-untyped")
    expect(note).to_be_empty()
    run_race(opened)
    opened.locator("#vl-question").fill("")
    expect(note).to_have_text("Empty: the model is asked “Describe the picture.”")
    expect(opened.locator(".vl-turn")).to_contain_text("Starts a new conversation.")
    note_sent(opened)
    run_race(opened)
    sent = opened.evaluate("window.sent")
    assert sent["question"] == "" and sent["history"] == [] and len(sent["media"]) == 1
    expect(opened.locator(".vl-question")).to_have_text("Describe the picture.")
    opened.get_by_role("button", name="Ask a follow-up").click()
    expect(opened.locator(".vl-turns b")).to_have_text("Describe the picture.")
    expect(note).to_be_empty()


def test_a_new_picture_begins_a_new_conversation_unless_one_says_otherwise(opened, tmp_path: Path):
    """And without a picture none is carried along."""
    note_sent(opened)
    (tmp_path / "new.png").write_bytes(bytes.fromhex(PNG))
    for keep in (False, True):
        choose(opened, "scene", 2)
        run_race(opened)
        opened.locator("#vl-files").set_input_files(tmp_path / "new.png")
        expect(opened.locator(".vl-turn")).to_contain_text("Starts a new conversation.")
        if keep:
            opened.get_by_label("Keep the conversation").check()
            expect(opened.locator(".vl-turn")).to_contain_text("Continues the conversation")
        run_race(opened)
        sent = opened.evaluate("window.sent")
        assert [item["name"] for item in sent["media"]] == ["new.png"]
        assert len(sent["history"]) == int(keep)
    opened.get_by_role("button", name="New conversation").click()
    opened.locator("#vl-question").fill("What is the capital of France?")
    run_race(opened)
    sent = opened.evaluate("window.sent")
    assert sent["media"] == sent["history"] == []


def test_after_stop_a_follow_up_goes_on_from_the_longest_lossless_text(opened):
    """Not from the autoregressive lane's shorter one, nor from a relaxed one; the page says from
    which.
    """
    opened.evaluate("""() => {
          Object.assign(specvl.ask.request, {methods: ['lvspec', 'sage']});
          specvl.ask.request.sampling.max_new_tokens = 600;
        }""")
    opened.locator("#vl-run").click()
    opened.wait_for_function(
        """() => {
          const [base, , sage] = specvl.race.list;
          return specvl.race.meta.source === 'live' && sage?.tokens.length > base.tokens.length + 5;
        }"""
    )
    opened.locator("#vl-stop").click()
    opened.wait_for_function("!specvl.ask.running")
    expect(opened.locator("#vl-status")).to_contain_text(
        "A follow-up continues from what SAGE had written."
    )
    texts = opened.evaluate("specvl.race.list.map((lane) => lane.text.trim())")
    opened.get_by_role("button", name="Ask a follow-up").click()
    expect(opened.locator(".vl-turns li")).to_contain_text("As far as SAGE had written it.")
    (turn,) = opened.evaluate("specvl.ask.request.history")
    assert turn["answer"] == texts[2] and len(texts[2]) > len(texts[0]) > 0


def test_a_full_conversation_is_said_before_it_is_sent(opened):
    """One earlier question too many, or one picture: a sentence, nothing sent. Just full, it is
    asked.
    """
    converse = """([turns, pictures]) => {
      const { media } = specvl.ask.request;
      const turn = (_, i) => ({ question: `q${i}`, answer: 'a', media: i < pictures ? media : [] });
      specvl.chat.set(Array.from({ length: turns }, turn));
    }"""
    assert opened.evaluate("specvl.ask.request.media.length") == 1
    note_sent(opened)
    status = opened.locator("#vl-status")
    for turns, pictures, words in (
        (
            MAX_TURNS + 1,
            0,
            (
                f"At most {MAX_TURNS} earlier questions are remembered, and there are"
                f" {MAX_TURNS + 1}."
            ),
        ),
        (
            MAX_TURNS,
            MAX_SHOWN,
            f"at most {MAX_SHOWN} pictures and clips; with this question it has {MAX_SHOWN + 1}.",
        ),
    ):
        opened.evaluate(converse, [turns, pictures])
        opened.locator("#vl-run").click()
        expect(status).to_contain_text(words)
        assert not opened.evaluate("specvl.ask.running || Boolean(window.sent)")
    opened.evaluate(converse, [MAX_TURNS, MAX_SHOWN - 1])
    run_race(opened)
    sent = opened.evaluate("window.sent")
    assert len(sent["history"]) == MAX_TURNS
    assert sum(len(turn["media"]) for turn in [*sent["history"], sent]) == MAX_SHOWN


def test_every_parameter_says_what_it_does_and_the_papers_value(opened):
    """Every field of a method has a label and a line of help; values known from the paper are
    given.
    """
    for name in ("sage", "lvspec"):
        opened.locator(f".vl-ask [data-method={name}] input").check()
    opened.wait_for_function("document.querySelectorAll('.vl-method-panel .vl-param').length > 8")
    fields = opened.evaluate(
        """() => [...document.querySelectorAll('.vl-method-panel .vl-param')].map(
      (f) => [f.querySelector('label').textContent,
              f.querySelector('.vl-help')?.textContent ?? ''])"""
    )
    assert all(label and len(text) > 10 for label, text in fields), fields
    shown = dict(fields)
    assert shown["draft length γ"].endswith("Paper preset: 10.") and shown[
        "maximum nodes"
    ].endswith("Paper preset: 64.")
    assert sum("Paper preset: " in text for text in shown.values()) >= 10


def test_every_wait_has_a_sign(opened):
    """Place in the line, how far loading is, reading the prompt: each is said, and something
    moves.
    """
    opened.evaluate("() => { specvl.runner.api.trigger = () => {}; }")
    opened.locator("#vl-run").click()
    status = opened.locator("#vl-status")
    expect(status).to_have_text("Starting the engine…")
    expect(opened.get_by_role("progressbar", name="Waiting for the first words")).to_be_visible()
    expect(opened.locator("#vl-run")).to_be_disabled()
    stages = [
        ({"k": "queue", "place": 3, "eta_s": 41.6}, "Waiting: number 3 in line, about 42 s."),
        ({"k": "queue", "place": 1, "eta_s": 8}, "Waiting: you are next, about 8 s."),
        (
            {"k": "status", "stage": "loading", "detail": "Fetching x: 1.0 of 2.0 GB"},
            "1.0 of 2.0 GB",
        ),
        ({"k": "status", "stage": "media"}, "Opening the pictures…"),
        ({"k": "status", "stage": "prefill"}, "Reading the pictures and the question…"),
    ]
    feed = "(text) => specvl.runner.stream.feed(text)"
    for seq, (event, words) in enumerate(stages):
        opened.evaluate(feed, json.dumps({"run": "r", "seq": seq, "ts": 0, "events": [event]}))
        expect(status).to_contain_text(words)
    fault = {"k": "error", "text": "This picture is too large; send a smaller one."}
    end = {"run": "r", "seq": len(stages), "ts": 0, "events": [fault, {"k": "done"}]}
    opened.evaluate(feed, json.dumps(end))
    expect(status).to_have_text(fault["text"])
    expect(opened.locator(".vl-notice")).to_have_text(fault["text"])
    expect(opened.locator(".vl-lane")).to_have_count(2)  # the race that was there stays
    expect(opened.get_by_role("progressbar", name="Waiting for the first words")).to_be_hidden()
    expect(opened.locator("#vl-run")).to_be_enabled()


def test_late_batches_are_not_taken_for_the_next_run_and_missed_ones_fetched(opened):
    """Nothing of a finished run that comes during the next counts there; what never came is not
    lost.
    """
    opened.evaluate("""() => {
          const {stream} = specvl.runner;
          const feed = stream.feed.bind(stream);
          const first = [];
          stream.fetchRun = async () => first;
          stream.feed = (text) => {
            feed(text);
            if (!text) return;
            const {run, seq} = JSON.parse(text);
            if (!first.length || JSON.parse(first[0]).run === run) first.push(text);
            else if (seq === 3) first.slice(-2).forEach(feed);
          };
        }""")
    answers = []
    for _ in range(2):
        run_race(opened)
        answers.append(
            opened.evaluate("specvl.race.list.map((lane) => [lane.rounds.length, lane.text])")
        )
    assert answers[0] == answers[1]
    opened.evaluate("""() => {
          const {stream, api} = specvl.runner;
          let n = 0;
          delete stream.feed;
          const feed = stream.feed.bind(stream);
          stream.fetchRun = (run) => api.server.batches(run);
          stream.feed = (text) => { if ((n += 1) % 3 === 1) feed(text); };
        }""")
    run_race(opened)
    assert answers[0] == opened.evaluate(
        "specvl.race.list.map((lane) => [lane.rounds.length, lane.text])"
    )

"""The other views, compare and learn; rounds, branches, conversation, links, settings."""

import csv
import io
import json
import re
import zipfile

from PIL import Image
from playwright.sync_api import expect

from specvl_demo.places import ROOT
from specvl_demo.report import trace
from tests.page.conftest import note_sent, press, reload
from tests.page.made_up import LONG
from tests.page.test_files import PNG
from tests.page.test_race import FINISHED, finish_replay


def open_tab(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    expect(page.get_by_role("tabpanel", name=name)).to_be_visible()


def open_compare(page, **fields: object):
    """The view, with numbers in its form."""
    open_tab(page, "Compare")
    for name, value in fields.items():
        page.locator(f"#vl-c-{name}").fill(str(value))
    return page.locator(".vl-compare")


def test_all_rounds_stand_in_a_table_below_the_tree(opened):
    """A row a round, once it is unfolded; a row opens its round in the tree."""
    finish_replay(opened)
    opened.get_by_text("All rounds", exact=True).click()
    rounds = opened.evaluate("specvl.race.focused.rounds.length")
    expect(opened.locator(".vl-rounds tbody tr")).to_have_count(rounds)
    press(opened, "Round 4", exact=True)
    expect(opened.locator(".vl-facts").first).to_contain_text("round 4 ")
    expect(opened.locator(".vl-rounds tr.current th")).to_have_text("4")


def test_another_candidate_is_taken_and_run_on_from_beside_the_original(opened):
    """A rival's button in the inspector asks the same question with what was written up to there
    and the rival as the answer's beginning, of that lane and the plain model; the original stands
    beside it, and comes back.
    """
    finish_replay(opened)
    note_sent(opened)
    opened.evaluate("specvl.race.select({lane: 'tabed', token: 7, picked: true})")
    expect(opened.locator(".vl-race .vl-inspect-head")).to_contain_text("token 8 ")
    text = opened.evaluate("specvl.race.lanes.get('tabed').text")
    ids = opened.evaluate("specvl.race.lanes.get('tabed').tokens.slice(0, 7).map((t) => t.id)")
    rival = opened.locator(".vl-race .vl-take").first
    name = rival.locator("code").inner_text()
    expect(rival).to_have_attribute("title", f"Branch: take {name} here instead")
    rival.press("Enter")  # what it would do is said first
    run = opened.get_by_role("button", name="Run the branch")
    expect(run).to_be_focused()
    opened.keyboard.press("Escape")
    assert not opened.evaluate("specvl.form.running")
    rival.press("Enter")
    run.press("Enter")
    opened.wait_for_function(f"!specvl.form.running && {FINISHED}")
    sent = opened.evaluate("window.sent")
    assert sent["prefix"][:-1] == ids
    assert (sent["baseline"], sent["methods"]) == (True, ["tabed"])
    original = opened.get_by_role("region", name="The original, TABED")
    expect(original).to_contain_text(text.strip()[:60])
    fork = original.locator(".vl-fork")
    expect(fork).to_have_attribute("title", f"The branch takes {name} here.")
    expect(opened.locator(".vl-lane:not(.vl-original) .vl-given")).to_have_text(["given "] * 2)
    same = "same answer from the given beginning on"
    for said in (".vl-says .vl-headline", ".vl-verdict"):
        expect(opened.locator(said)).to_contain_text(same)
    press(original, "Back to the original")
    expect(opened.locator(".vl-original")).to_have_count(0)
    assert opened.evaluate("specvl.race.lanes.get('tabed').text") == text


def save_tables(page) -> dict[str, str]:
    """Save what Compare shows: the archive's files."""
    with page.expect_download() as saved:
        page.locator("#vl-c-save").click()
    with zipfile.ZipFile(saved.value.path()) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_comparison_is_stopped_gone_on_with_and_saved(opened, tmp_path):
    """Methods on the pair's own questions: progress, tables, charts and answers of what is done;
    Stop keeps it, Go on goes on. A method that cannot sample is named.
    """
    view = open_compare(opened, questions=4, repeats=2, temperature=0.5, tokens=LONG)
    expect(view).to_contain_text("Asked of Pocket")
    expect(view).to_contain_text(re.compile(r"Recorded \d{4}-\d\d-\d\d"))
    view.get_by_label("LVSpec").check()
    opened.locator("#vl-c-run").click()
    status = view.locator("[role=status]")
    expect(status).to_contain_text(re.compile(r"Question 2 of 4, .*to go, about \d+ (s|min)"))
    expect(view.locator("tbody th").nth(1)).to_contain_text("TABED")
    opened.locator("#vl-c-stop").click()
    expect(status).to_have_text("Stopped. The tables hold what was finished.")
    expect(view).to_contain_text("So far 1 of 8 questions were asked")
    expect(view).to_contain_text("Not defined for sampling, and left out: LVSpec")
    opened.locator("#vl-c-on").click()
    expect(status).to_have_text("Done: 4 questions, each asked 2 times.")
    expect(view).not_to_contain_text("So far")
    expect(view.get_by_label("Speed by kind of question")).to_contain_text("describe")
    card = view.locator("[data-chart=bench-depth]")
    card.scroll_into_view_if_needed()
    expect(card.locator(".plot-container").first).to_be_visible()
    answers = view.locator(".vl-c-answers details")
    expect(answers).to_have_count(4)
    answers.first.locator("summary").click()
    expect(answers.first.locator("dt")).to_have_text(["Autoregressive", "TABED"])
    expect(answers.first.locator("dd").last).to_contain_text("… (cut at 40 tokens)")
    assert answers.first.locator("img").evaluate("(image) => image.naturalWidth") > 0
    files = save_tables(opened)
    assert not re.search(r"[ τ]", "".join(files))
    traces = [name for name in files if name.startswith("traces/")]
    table = list(csv.DictReader(io.StringIO(files["1-decoding.csv"])))
    assert files["bench.md"].startswith(opened.evaluate("specvl.catalog.pairs[0].title"))
    assert len(traces) == 8 * 2 and not trace.inspect_text(files[traces[0]])[1]
    answers = list(csv.DictReader(io.StringIO(files["answers.csv"])))
    assert len(answers) == 8 * 2 and all(float(row["seconds"]) > 0 for row in answers)
    assert all(row["seed"] and row["kind"] for row in answers)
    conditions = csv.DictReader(io.StringIO(files["conditions.csv"]))
    assert {"name": "repeats", "value": "2"} in conditions
    assert json.loads(files["bench.json"])["rows"][1]["method"] == "tabed"
    assert len(table) == 2 and all(float(row["tokens/s"]) > 0 for row in table)
    # A cell opens a race on such a question; what `bench --json` prints opens without races.
    kept_report = tmp_path / "bench.json"
    kept_report.write_text(json.dumps(opened.evaluate("specvl.bench.report")))
    cells = view.get_by_label("Speedup by kind of question").locator("tbody button")
    cells.first.click()
    expect(view).to_be_hidden()
    open_tab(opened, "Compare")
    view.locator("#vl-c-files").set_input_files(kept_report)
    expect(cells).to_have_count(0)
    expect(view.get_by_label("Speedup by kind of question")).to_contain_text("TABED")
    assert save_tables(opened)["1-decoding.tex"].startswith(r"\begin{tabular}{lr")


def test_a_comparison_stopped_at_once_says_so_and_one_left_goes_on(opened):
    """Until what is computed is over no other one can begin, two presses in a row begin one, and
    one that is stopped while it is sent asks nothing. A reload keeps form, tables and the rest.
    """
    view = open_compare(opened, questions=4, repeats=2, tokens=LONG)
    status = view.locator("[role=status]")
    go, halt, onward = (opened.locator(f"#vl-c-{name}") for name in ("run", "stop", "on"))
    opened.evaluate("""() => {
      const { server } = specvl.api;
      const start_bench = async (made) => {
        window.benches = (window.benches ?? 0) + 1;
        await new Promise((sent) => { window.sent = sent; });
        return server.start_bench(made);
      };
      specvl.api = { ...specvl.api, server: { ...server, start_bench } };
    }""")
    go.dblclick()
    opened.wait_for_function("Boolean(window.sent)")
    halt.click()
    expect(status).to_have_text("Stopping: what is being computed ends first…")
    expect(go).to_be_disabled()
    expect(halt).to_be_disabled()
    opened.evaluate("window.sent()")
    expect(status).to_have_text("Stopped before a question was finished: there are no tables.")
    expect(go).to_be_enabled()
    assert opened.evaluate("window.benches") == 1
    onward.click()
    expect(view).to_contain_text("So far 1 of 8 questions were asked")
    reload(opened)
    expect(status).to_have_text(
        "The comparison stopped when the page was left. What was finished is kept; Go on asks the"
        " rest."
    )
    expect(opened.locator("#vl-c-repeats")).to_have_value("2")
    expect(view.locator("tbody th").nth(1)).to_contain_text("TABED")
    onward.click()
    expect(status).to_have_text("Done: 4 questions, each asked 2 times.")


def test_a_bench_asks_one_question_of_every_picture_in_a_folder(opened, tmp_path):
    """Folders within it too; what is no picture is left out and told. No answers are counted while
    a number is none that can be asked for.
    """
    (tmp_path / "more").mkdir()
    for name in ("a.png", "more/b.png"):
        Image.new("RGB", (64, 64), "red").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    view = open_compare(opened, repeats=1)
    counted = view.get_by_text(re.compile(r"\d answers[;:]"))
    for questions in (-3, 1e9, 2.5, ""):
        expect(counted).to_be_visible()
        open_compare(opened, questions=questions)
        expect(counted).to_have_count(0)
        open_compare(opened, questions=10)
    view.locator("#vl-c-source").select_option("files")
    view.locator("#vl-c-folder").set_input_files(tmp_path)
    drop = view.locator(".vl-c-drop")
    expect(drop).to_contain_text(re.compile(r"2 files: .*\.png; 2 questions; 1 of another kind"))
    view.locator("#vl-c-question").fill("What is it?")
    opened.locator("#vl-c-run").click()
    expect(view.locator("[role=status]")).to_contain_text("Done: 2 questions.")


def test_a_bench_of_own_questions_reads_them_as_the_command_line_does(opened, tmp_path):
    """Lines and pictures, dropped wherever they fall on the view; a missing picture is named."""
    lines = (
        '{"question": "Which colour?", "image": "one.png", "answer": "red", "kind": "colour"}\n'
        '{"question": "Where?", "image": "two.png"}\n'
    )
    view = open_compare(opened, repeats=1)
    opened.evaluate(
        """([lines, hex]) => {
          const dataTransfer = new DataTransfer();
          const picture = Uint8Array.from(hex.match(/../g), (b) => parseInt(b, 16));
          dataTransfer.items.add(new File([lines], 'mine.jsonl'));
          dataTransfer.items.add(new File([picture], 'one.png', { type: 'image/png' }));
          const dropped = new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true });
          document.querySelector('.vl-compare .vl-methods').dispatchEvent(dropped);
        }""",
        [lines, PNG],
    )
    expect(view.locator("#vl-c-source")).to_have_value("files")
    expect(view.locator(".vl-c-drop")).to_contain_text("2 files: mine.jsonl, one.png")
    expect(view.get_by_text("A line is")).to_be_visible()
    opened.locator("#vl-c-run").click()
    status = view.locator("[role=status]")
    expect(status).to_contain_text("A question names two.png, which was not added")
    second = tmp_path / "two.png"
    Image.new("RGB", (64, 64), "blue").save(second)
    view.locator("#vl-c-files").set_input_files([second])
    opened.locator("#vl-c-run").click()
    expect(status).to_contain_text("Done: 2 questions.")
    first = view.locator(".vl-c-table").first
    expect(first).to_contain_text("F1 of words")
    expect(view.get_by_text("F1 of words: how far")).to_contain_text("in 1 question that came with")
    expect(view.get_by_label("Speed by kind of question")).to_contain_text("colour")


def test_learn_has_a_lesson_for_every_method(opened):
    """Idea, formula, what to look for and a link to the paper for each of the five, with its
    recorded race where one is here; a line for every other method.
    """
    open_tab(opened, "Learn")
    for name in opened.evaluate("specvl.catalog.papers"):
        lesson = opened.locator(f"#lesson-{name}")
        expect(lesson.get_by_role("heading", level=2).first).to_have_count(1)
        expect(lesson.locator("math")).to_have_count(1)
        expect(lesson).to_contain_text("What to look for")
        expect(lesson).to_contain_text("On drawn scenes (the pocket pair) this ")
    opened.locator("#lesson-tabed").scroll_into_view_if_needed()
    expect(opened.locator("#lesson-tabed .vl-tree .node").first).to_be_visible()
    expect(opened.locator("#lesson-first")).to_contain_text("Rejected: guessed, but not kept")
    cited = (ROOT / "CITATION.bib").read_text("utf-8").split("\n\n")[1]
    expect(opened.locator(".vl-lessons")).to_contain_text(cited)
    expect(opened.locator("#lesson-lvspec")).to_contain_text("tolerates position shifts")
    others = opened.evaluate("specvl.catalog.methods.length - 5")
    expect(opened.locator("#lesson-others dt")).to_have_count(others)
    press(opened, "Watch “scene”")
    expect(opened.get_by_role("tabpanel", name="Race")).to_be_visible()

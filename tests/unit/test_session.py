"""From a question, however it is written down, to lanes and back to text: one parser for every
door; text stays text; what lanes share is computed once; no character is torn.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from specvl_demo.cli.parse import parse_arguments
from specvl_demo.core.detokenizer import Detokenizer, TokenTexts
from specvl_demo.core.engine import SharedPrefill
from specvl_demo.core.sampling import Sampling
from specvl_demo.core.tree import DraftTree, shape_of
from specvl_demo.media import PLACE, VideoFrames
from specvl_demo.methods.base import choose
from specvl_demo.pairs import find
from specvl_demo.question import MAX_CHARACTERS, Question, Turn, find_file, parse_line, read
from specvl_demo.records import Begin, Confidence, End, LaneRecords, Record, Totals, validate_trace
from specvl_demo.serving import session
from specvl_demo.ui.serve import benches
from specvl_demo.ui.serve.jobs import read_job
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.layouts import MediaSize, media_spans
from specvl_demo.vlm.prompts import PromptBuilder, with_prefix
from specvl_demo.vlm.shared_drafter import with_even_layers
from tests.shared import pocketlike, zoo
from tests.shared.lanes import ar_lane, chain_lane, flat
from tests.shared.refusals import refuses
from tests.shared.tiny import ask, rounds_of, tiny_prompt

PICTURE = Image.new("RGB", (96, 96), (200, 30, 30))


@pytest.fixture(scope="module")
def model_and_processor() -> tuple[torch.nn.Module, object]:
    """The pocket family's, with two added tokens: joined words, and a mark without the flag."""
    words = pocketlike.tokenizer()
    words.add_tokens([" top left", "<tool>"])
    model = pocketlike.make_model(len(words), layers=1, tower_layers=1)
    return model.eval(), pocketlike.make_processor(words)


@pytest.fixture(scope="module")
def prompter(model_and_processor: tuple[torch.nn.Module, object]) -> PromptBuilder:
    model, processor = model_and_processor
    return PromptBuilder(processor, model)


def test_an_answer_of_joined_words_comes_back_as_the_ids_it_was(prompter: PromptBuilder):
    """Else the next question would show another text, and none of the kept rows would hold."""
    said = prompter.ids(" a star above. In the top left is a circle top left")
    assert prompter.ids(" top left")[0] in said
    first = prompter.prompt(Question("what is it?", (PICTURE,)))
    answer = prompter.token_texts().text_after(int(first.ids[-1]), tuple(said))
    second = prompter.prompt(
        Question("is it above?", earlier=(Turn("what is it?", (PICTURE,), answer),))
    )
    known = [*first.ids.tolist(), *said]
    assert second.ids.tolist()[: len(known)] == known
    assert f"{answer}<eos>" in second.text


@pytest.mark.parametrize("mark", ["<tool>", "<eos>", "<image>", "<assistant>"])
def test_marks_that_a_person_types_are_taken_apart(prompter: PromptBuilder, mark: str):
    plain = prompter.prompt(Question("what is it?", (PICTURE,)))
    typed = prompter.prompt(Question(f"what is {mark} it?", (PICTURE,)))
    (number,) = prompter.ids(mark)
    assert torch.equal((typed.ids == number).sum(), (plain.ids == number).sum())
    assert len(typed) > len(plain)


def test_a_format_with_pictures_first_refuses_one_between_texts(prompter: PromptBuilder):
    asked = Question(f"before{PLACE}after{PLACE}", (PICTURE, PICTURE))
    refuses("pictures before the text", prompter.prompt, asked)


@pytest.mark.parametrize("method", ["ar", "chain", "tree", "tabed"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_goes_on_from_a_given_beginning_as_it_went_on_by_itself(
    answers: Callable[..., tuple[list[int], list[object]]], method: str, temperature: float
):
    """With the first tokens of an answer given, the others are the same, whoever drafts them and
    however they are drawn; the record tells what was given.
    """
    prompt, sampling = tiny_prompt(), Sampling(temperature, seed=5)
    whole, _ = answers("ar", prompt, sampling=sampling)
    given = tuple(whole[:4])
    begun = replace(
        prompt,
        ids=torch.cat((prompt.ids, torch.tensor(given))),
        visual=torch.cat((prompt.visual, torch.zeros(4, dtype=torch.bool))),
        inputs=with_prefix(prompt.inputs, given),
        prefix=given,
    )
    rest, records = answers(method, begun, sampling=sampling, max_new_tokens=20)
    assert rest == whole[4:]
    assert records[0].prefix.ids == list(given)
    assert records[0].prefix.text == "".join(f"{one} " for one in given)


def test_a_beginning_is_text_behind_the_question(prompter: PromptBuilder):
    """It makes the prompt longer by its ids in all that the model is given of tokens; what is no
    text of the model is refused in a sentence.
    """
    asked = Question("What is this?", (PICTURE,))
    plain, begun = prompter.prompt(asked), prompter.prompt(replace(asked, prefix=(7, 8)))
    assert begun.ids.tolist() == [*plain.ids.tolist(), 7, 8]
    assert begun.inputs["input_ids"].tolist() == [begun.ids.tolist()]
    assert begun.inputs["attention_mask"].shape == begun.inputs["input_ids"].shape
    assert begun.spans == plain.spans
    assert prompter.rebuild(begun).prefix == (7, 8)
    for wrong in (-1, 10**6, min(prompter.special_ids)):
        refuses("not text of this model", prompter.prompt, replace(asked, prefix=(7, wrong)))


def test_words_behind_a_pictures_patches_are_no_patches():
    """Two pictures of 3 by 3 patches, each followed by 2 tokens that stand for no place."""
    visual = torch.tensor([False, *[True] * 11, False, *[True] * 11, False])
    shown = [MediaSize("image", 10, 10), MediaSize("image", 20, 10)]
    found = media_spans(None, {"pixel_values": torch.zeros(2, 3, 4, 4)}, visual, shown, words=2)
    assert [(s.media, s.start, s.stop, s.rows, s.cols) for s in found] == [
        (0, 1, 10, 3, 3),
        (0, 10, 12, None, None),
        (1, 13, 22, 3, 3),
        (1, 22, 24, None, None),
    ]


def race(models: Any, *methods: str, warmed: bool = True) -> Iterator[Record]:
    request = ask(models.target, tiny_prompt())
    choices = [choose(method) for method in methods]
    return session.race(SimpleNamespace(models=models), request, choices, warmed)


def test_warm_up_and_race_share_encodings_and_prefills(models: object, monkeypatch):
    """Two lanes: one vision pass a model, one prefill, in the warm-up; the race finds them, and
    what times short answers again has another prefill.
    """
    passes = Counter()
    target, small = models.target, models.drafter("small")
    for owner, name in ((target, "prefill"), (target.vlm, "encode"), (small, "encode")):
        run = getattr(owner, name)

        def counted(*words: object, run: object = run, key: str = f"{owner.name} {name}") -> object:
            passes[key] += 1
            return run(*words)

        monkeypatch.setattr(owner, name, counted)
    records = list(race(models, "ar", "chain", warmed=False))
    assert passes == {"tiny target encode": 1, "tiny drafter encode": 1, "tiny target prefill": 2}
    assert [record.totals.n_tokens for record in records if isinstance(record, End)] == [24, 24]
    assert all(record.prefill_s > 0 for record in records if isinstance(record, Begin))


def test_a_short_answer_is_decoded_again_until_it_can_be_timed(models: object, monkeypatch):
    """24 tokens once more, unseen; only the seconds are told. Beside AR, and within a second."""
    lanes = validate_trace(race(models, "ar", "chain"))
    assert [len(lane.end.again) for lane in lanes] == [1, 1]
    assert all(lane.end.again[0] > 0 for lane in lanes)
    (alone,) = validate_trace(race(models, "chain"))
    assert alone.end.again == [] and alone.token_ids == lanes[1].token_ids
    monkeypatch.setattr(session, "AGAIN_S", 0.0)
    assert [lane.end.again for lane in validate_trace(race(models, "ar", "chain"))] == [[], []]


def test_every_lane_ends_with_what_its_whole_records_say_of_its_answer(models: object, monkeypatch):
    told = Confidence("unsure", 0.6, 0.5)
    folded = []
    monkeypatch.setattr(session, "confidence", lambda lane: folded.append(lane) or told)
    ran = session.Race(race(models, "ar", "chain"), threading.Lock())
    assert [lane.end.confidence for lane in ran.lanes] == [told, told]
    by_name = {lane.begin.lane: lane for lane in folded}
    for lane in ran.lanes:
        assert by_name[lane.begin.lane].token_ids == lane.token_ids and lane.token_ids


def test_rounds_note_how_busy_others_keep_the_machine(models: object, monkeypatch):
    """Now and then, so that a saved race shows what the page showed while it ran."""
    monkeypatch.setattr(session.MachineLoad, "others_share", lambda self: 0.5)

    def noted(every_s: float) -> list[object]:
        monkeypatch.setattr(session, "LOAD_EVERY_S", every_s)
        return [round_.notes.get("load") for round_ in rounds_of(race(models, "ar"))]

    assert set(noted(-1.0)) == {0.5} and set(noted(60.0)) == {None}


def test_a_drafter_with_its_targets_tower_looks_through_it(models: object, monkeypatch):
    """Layers of its own, everything before them the target's: no second vision pass."""
    target = models.target
    small = VLM(with_even_layers(target.vlm.model, 1), "one layer", shares=target.vlm)
    monkeypatch.setattr(small, "_encode", lambda prompt: pytest.fail("its tower ran"))
    shared = SharedPrefill(ask(target, tiny_prompt()))
    assert shared.encoded_prompt(small) is shared.encoded_prompt(target)
    assert torch.equal(small.encode(tiny_prompt()).embeds, shared.encoded_prompt(target).embeds)


def test_a_session_has_room_for_what_was_announced_and_no_more(target: object):
    session = target.open(target.prefill(target.encode(tiny_prompt(0))), 4, 3)
    tree = DraftTree(torch.tensor([9, 20, 21]), shape_of((-1, 0, 0)))
    for _ in range(4):
        session.score(tree)
        session.commit([0])
    refuses("room", session.score, DraftTree(torch.arange(9), shape_of((-1, *[0] * 8))))


def decode_bytes(ids: Sequence[int], keep_special: bool = False) -> str:
    """Ids below 256 are bytes; 256 is special. The first token loses its leading space."""
    text = bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")
    text = text.removeprefix(" ")
    return text + "<end>" * (keep_special and 256 in ids)


@pytest.mark.parametrize(
    "text", ["plain text", " leading", "naïve café", "日本語 ok", "🙂 and 👩‍👩‍👧", "a\n b"]
)
def test_pieces_join_to_the_text_and_no_character_is_torn(text: str):
    ids = list(text.encode())
    speaker = Detokenizer(TokenTexts(decode_bytes), before=ord("x"))
    pieces = [speaker.decode_next(i, last=n == len(ids) - 1) for n, i in enumerate(ids)]
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert [len(p) for p in pieces].count(0) == len(ids) - len(text)


def test_bytes_that_never_become_a_character_are_shown_and_hold_no_text_back():
    """At the end of an answer, which may be cut inside a character, and before it."""
    first, second = "é".encode()
    cut, end, torn = (Detokenizer(TokenTexts(decode_bytes), before=ord("x")) for _ in range(3))
    assert cut.decode_next(first) == "" and cut.decode_next(ord("!"), last=True).endswith("!")
    assert end.decode_next(second, last=True) == "\N{REPLACEMENT CHARACTER}"
    # No character has more than four bytes.
    assert [bool(torn.decode_next(0x80)) for _ in range(8)] == [*[False] * 3, True] * 2


def test_words_keep_their_space_and_special_tokens_have_names():
    token_texts = TokenTexts(decode_bytes)
    assert token_texts.display_text(ord(" ")) == " "
    assert token_texts.display_text(ord("a")) == "a"
    assert token_texts.display_text(256) == "<end>"


UNEVEN = (0.0, 3.0, 6.0, 9.0, 10.0, 10.4, 10.8, 11.0)


def builder(family: str) -> PromptBuilder:
    model, processor = zoo.FAMILIES[family].build()
    return PromptBuilder(processor, model)


def said(prompter: PromptBuilder, question: Question) -> str:
    """The prompt as the model reads it."""
    ids = prompter.prompt(question, room=1).ids.tolist()
    return prompter._decode(ids, keep_special=True)


@pytest.mark.parametrize(
    ("family", "pattern", "times"),
    [
        ("qwen3-vl", r"<([\d.]+) seconds>", ["1.5", "7.5", "10.2", "10.9"]),  # means of pairs
        ("glm4v", r"<\|end_of_image\|>(\d+)", ["0", "6", "10", "10"]),  # the first of each pair
    ],
)
def test_a_prompt_names_the_times_of_its_frames(family: str, pattern: str, times: list[str]):
    frames = tuple(
        Image.fromarray(np.full((64, 64, 3), 20 * i, np.uint8)) for i in range(len(UNEVEN))
    )
    text = said(builder(family), Question("What happens?", (VideoFrames(frames, UNEVEN),)))
    assert re.findall(pattern, text) == times


def test_pictures_stand_where_a_question_marks_their_places():
    prompter, picture = builder("qwen3-vl"), zoo.picture(1, 56, 56)
    shown = r"<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>"
    asked = Question(f"before:{PLACE}after:{PLACE}", (picture, picture))
    assert re.search(f"before:{shown}after:{shown}", said(prompter, asked))
    # A mark that somebody typed stands for nothing.
    plain = said(prompter, Question(f"what{PLACE} is this", (picture, picture)))
    assert re.search(f"{shown}{shown}what is this", plain)


SAMPLED = {"seed": 3, "max_new_tokens": 9, "top_k": 4, "logit_bias": {"5": 1}}
SAMPLED |= {"stop": ["x", "yz"], "ignore_eos": True}


def page(folder: Path) -> Question:
    file = {"path": str(folder / "a.png"), "name": "mine"}
    asked = {"pair": "pocket", "question": "what", "media": file, **SAMPLED}
    return read_job(asked | {"max_new_tokens": 9.0}, [folder]).question


def endpoint(folder: Path) -> Question:
    asked = {
        "pair": "pocket",
        "prompt": "what",
        "image": {"path": str(folder / "a.png")},
        "video": None,
    }
    sampling = {**SAMPLED, "answer_prefix": "", "picture_detail": None}
    return read_job(asked | sampling, [folder]).question


def command(folder: Path) -> Question:
    words = ["generate", "--method", "ar", "--prompt", "what", "--image", str(folder / "a.png")]
    words += ["--seed", "3", "--max-new-tokens", "9", "--top-k", "4", "--logit-bias", '{"5": 1}']
    return read(vars(parse_arguments([*words, "--stop", "x", "--stop", "yz", "--ignore-eos"])))


def line(folder: Path) -> Question:
    text = json.dumps({"id": "x", "prompt": "what", "images": ["a.png"], "answer": "halves"})
    return read(parse_line(text) | SAMPLED, partial(find_file, folders=[folder]))


@pytest.mark.parametrize("door", [page, endpoint, command, line])
def test_every_door_reads_the_same_question(tmp_path: Path, door: Callable[[Path], Question]):
    (tmp_path / "a.png").write_bytes(b"x")
    question = door(tmp_path)
    assert (question.words, question.paths) == ("what", [str(tmp_path / "a.png")])
    stops = {"stop": ("x", "yz"), "ignore_eos": True}
    assert question.sampling == Sampling(seed=3, top_k=4, logit_bias={5: 1.0}, **stops)
    assert question.max_new_tokens == 9
    assert type(question.max_new_tokens) is int
    assert question.prefix in ((), "") and not question.earlier and not question.system


def test_only_a_visitors_text_is_limited():
    words = "a" * (MAX_CHARACTERS + 1)
    assert read({"question": words}).words == words
    refuses(f"at most {MAX_CHARACTERS} are allowed", read, {"question": words}, visitor=True)


def test_a_model_is_shown_no_more_pixels_than_it_is_to_be():
    def shown(width: int, height: int, **detail: float) -> tuple[int, int]:
        asked = Question("?", (Image.new("RGB", (width, height)),), **detail)
        (image,) = asked.read_files(find("pocket")).media
        return image.size

    assert shown(1000, 1000) == (1000, 1000)
    assert shown(4000, 3000) == (1290, 968)
    assert shown(4000, 3000, picture_detail=3.0) == (2000, 1500)


def test_a_question_without_words_asks_for_a_description():
    picture = Image.new("RGB", (40, 30))
    earlier = (Turn("", (picture, picture), "two"),)
    opened = Question(" \n\t", (picture,), earlier=earlier).read_files(find("pocket"))
    assert opened.words == "Describe the picture."
    assert opened.earlier[0].question == "Describe the pictures."
    assert opened.read_files(find("photo")) == opened


PREFIXES = ["The picture \ud800", [1, 2], None]


def test_an_answers_beginning_is_text_or_tokens():
    begun = [read({"question": "?", "prefix": prefix}, visitor=True).prefix for prefix in PREFIXES]
    assert begun == ["The picture \N{REPLACEMENT CHARACTER}", (1, 2), ()]


def test_a_comparison_is_a_bounded_number_of_jobs_in_turned_order():
    """Every question in every repeat; at one temperature."""
    request = {"pair": "pocket", "methods": ["chain", "ngram"], "questions": 2, "repeats": 2}
    bench = benches.read_bench(request, [], None)
    assert bench.methods == ["ar", "chain", "ngram"] and bench.n_steps == 4
    step = benches.Step(bench, 3)
    assert [name for name, _ in step.job.lanes] == ["chain", "ngram", "ar"]
    sampling = step.job.question.sampling
    assert step.job.timed and (sampling.seed, sampling.temperature) == (1, 0)
    sampled = benches.read_bench(request | {"temperature": 0.8}, [], None)
    assert sampled.jobs[0].question.sampling.temperature == 0.8


def test_a_step_is_kept_once_all_its_answers_are_whole():
    """The page hears who answers and no record; of two tabs the faster one's answers are kept."""
    request = {"pair": "pocket", "methods": ["chain"], "questions": 1, "repeats": 1}
    bench, whole = benches.read_bench(request, [], None), (ar_lane(), chain_lane())
    cut = LaneRecords(whole[1].begin, [], End("chain", "cancelled", Totals()))
    for lanes, n_kept in (whole[:1], 0), ((whole[0], cut), 0), (whole, 1), (whole, 1):
        before = bench.done
        step = benches.Step(bench, 0)
        events = [{"k": type(record).__name__.lower(), "record": record} for record in flat(*lanes)]
        events += [{"k": "facts", "facts": {"threads": len(lanes)}}, {"k": "done"}]
        said = [step.store_records(part) for part in (events[:2], [], events[2:-1])]
        assert bench.done == before
        said.append(step.store_records(events[-1:]))
        stages = [event.get("stage") for event in sum(said, [])]
        assert stages == [*["Ar answers…", "Chain answers…"][: len(lanes)], None]
        assert bench.done == n_kept
    assert [len(answers) for answers in bench.measured[0].values()] == [1, 1]
    assert bench.next_step() is None and bench.facts == {"threads": 2}


def test_a_bench_of_one_question_names_its_methods_before_it_has_an_answer():
    request = {"pair": "pocket", "methods": ["chain"], "questions": 1}
    report = benches.read_bench(request, [], None).report()
    assert list(report["settings"]["methods"]) == ["ar", "chain"]


def test_the_plain_model_runs_first_unless_it_is_declined():
    request = {"pair": "pocket", "question": "?", "methods": ["chain"]}

    def lanes(first: bool, **more: bool) -> list[str]:
        return [name for name, _ in read_job(request | more, [], first).lanes]

    assert lanes(True) == ["ar", "chain"]
    assert lanes(False) == lanes(True, baseline=False) == ["chain"]

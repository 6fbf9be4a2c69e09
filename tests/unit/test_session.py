"""From a conversation to lanes and back to text: what is text stays text, what lanes have in common
is computed once, and pieces of text never tear a character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from specvl_demo.core.detokenizer import Detokenizer, TokenTexts
from specvl_demo.core.engine import Lane, SharedPrefill
from specvl_demo.core.sampling import Sampling
from specvl_demo.core.tree import DraftTree, shape_of
from specvl_demo.methods.base import assemble, choose
from specvl_demo.question import Question, Turn
from specvl_demo.records import Begin, Confidence, End, Round
from specvl_demo.serving import session
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.layouts import MediaSize, spans
from specvl_demo.vlm.prompts import PromptBuilder, with_prefix
from specvl_demo.vlm.shared_drafter import with_layers
from tests import pocketlike
from tests.conftest import ask, tiny_prompt

PICTURE = Image.new("RGB", (96, 96), (200, 30, 30))


@pytest.fixture(scope="module")
def model_and_processor() -> tuple[torch.nn.Module, object]:
    """The pocket family's, with two added tokens: words joined for brevity, and a mark without the
    flag.
    """
    words = pocketlike.tokenizer()
    words.add_tokens([" top left", "<tool>"])
    model = pocketlike.make_model(len(words), layers=1, tower_layers=1)
    return model.eval(), pocketlike.make_processor(words)


@pytest.fixture(scope="module")
def prompter(model_and_processor: tuple[torch.nn.Module, object]) -> PromptBuilder:
    model, processor = model_and_processor
    return PromptBuilder(processor, model)


def test_an_answer_of_joined_words_comes_back_as_the_ids_it_was(prompter: PromptBuilder) -> None:
    """Else the next question would show the model another text, and none of the kept rows would
    hold.
    """
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
def test_marks_that_a_person_types_are_taken_apart(prompter: PromptBuilder, mark: str) -> None:
    plain = prompter.prompt(Question("what is it?", (PICTURE,)))
    typed = prompter.prompt(Question(f"what is {mark} it?", (PICTURE,)))
    (number,) = prompter.ids(mark)
    assert torch.equal((typed.ids == number).sum(), (plain.ids == number).sum())
    assert len(typed) > len(plain)


@pytest.mark.parametrize("method", ["ar", "chain", "tree", "tabed"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_goes_on_from_a_given_beginning_as_it_went_on_by_itself(
    answers: Callable[..., tuple[list[int], list[object]]], method: str, temperature: float
) -> None:
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


def test_a_beginning_is_text_behind_the_question(prompter: PromptBuilder) -> None:
    """It makes the prompt longer by its ids in all that the model is given of tokens; what is no
    text of the model is refused in a sentence.
    """
    asked = Question("What is this?", (PICTURE,))
    plain, begun = prompter.prompt(asked), prompter.prompt(replace(asked, prefix=(7, 8)))
    assert begun.ids.tolist() == [*plain.ids.tolist(), 7, 8]
    assert begun.inputs["input_ids"].tolist() == [begun.ids.tolist()]
    assert begun.inputs["attention_mask"].shape == begun.inputs["input_ids"].shape
    assert begun.spans == plain.spans
    assert prompter.again(begun).prefix == (7, 8)
    for wrong in (-1, 10**6, min(prompter.special_ids)):
        with pytest.raises(ValueError, match="not text of this model"):
            prompter.prompt(replace(asked, prefix=(7, wrong)))


def test_words_behind_a_pictures_patches_are_no_patches() -> None:
    """Two pictures of 3 by 3 patches, each followed by 2 tokens that stand for no place."""
    visual = torch.tensor([False, *[True] * 11, False, *[True] * 11, False])
    shown = [MediaSize("image", 10, 10), MediaSize("image", 20, 10)]
    found = spans(None, {"pixel_values": torch.zeros(2, 3, 4, 4)}, visual, shown, words=2)
    assert [(s.media, s.start, s.stop, s.rows, s.cols) for s in found] == [
        (0, 1, 10, 3, 3),
        (0, 10, 12, None, None),
        (1, 13, 22, 3, 3),
        (1, 22, 24, None, None),
    ]


def test_warm_up_and_race_share_encodings_and_prefills(
    models: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lanes: one vision pass a model, one prefill of the target, in the warm-up; the race finds
    them.
    """
    passes: Counter[str] = Counter()
    target, small = models.target, models.drafter("small")
    for owner, name in ((target, "prefill"), (target.vlm, "encode"), (small, "encode")):
        run = getattr(owner, name)

        def counted(*words: object, run: object = run, key: str = f"{owner.name} {name}") -> object:
            passes[key] += 1
            return run(*words)

        monkeypatch.setattr(owner, name, counted)
    loaded, asked = SimpleNamespace(models=models), ask(target, tiny_prompt())
    records = list(session.race(loaded, asked, [choose("ar"), choose("chain")]))
    assert passes == {"tiny target encode": 1, "tiny drafter encode": 1, "tiny target prefill": 1}
    assert [record.totals.n_tokens for record in records if isinstance(record, End)] == [24, 24]
    assert all(record.prefill_s > 0 for record in records if isinstance(record, Begin))


def test_every_lane_ends_with_what_its_whole_records_say_of_its_answer(
    models: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Confidence("unsure", 0.6, 0.5)
    folded = []
    monkeypatch.setattr(session, "confidence", lambda lane: folded.append(lane) or told)
    loaded, asked = SimpleNamespace(models=models), ask(models.target, tiny_prompt())
    race = session.Race(session.race(loaded, asked, [choose("ar"), choose("chain")], warmed=True))
    assert [lane.end.confidence for lane in race.lanes] == [told, told]
    by_name = {lane.begin.lane: lane for lane in folded}
    for lane in race.lanes:
        assert by_name[lane.begin.lane].token_ids == lane.token_ids and lane.token_ids


def test_rounds_note_how_busy_others_keep_the_machine(
    models: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then, so that a saved race shows what the page showed while it ran."""
    monkeypatch.setattr(session.Load, "others", lambda self: 0.5)
    loaded, asked = SimpleNamespace(models=models), ask(models.target, tiny_prompt())

    def noted(every_s: float) -> list[object]:
        monkeypatch.setattr(session, "LOAD_EVERY_S", every_s)
        records = session.race(loaded, asked, [choose("ar")], warmed=True)
        return [record.notes.get("load") for record in records if isinstance(record, Round)]

    assert set(noted(-1.0)) == {0.5} and set(noted(60.0)) == {None}


def test_a_prefill_is_dropped_when_its_last_lane_has_begun(models: object) -> None:
    shared = SharedPrefill(ask(models.target, tiny_prompt()))
    first, second = (Lane(name, assemble(choose(name), models), shared) for name in ("ar", "chain"))
    first.begin()
    assert len(shared._prefills) == 1
    second.begin()
    assert not shared._prefills


def test_a_drafter_with_its_targets_tower_looks_through_it(
    models: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of its own, everything before them the target's: no second vision pass."""
    target = models.target
    small = VLM(with_layers(target.vlm.model, 1), "one layer", shares=target.vlm)
    monkeypatch.setattr(small, "_encode", lambda prompt: pytest.fail("its tower ran"))
    shared = SharedPrefill(ask(target, tiny_prompt()))
    assert shared.encoded(small) is shared.encoded(target)
    assert torch.equal(small.encode(tiny_prompt()).embeds, shared.encoded(target).embeds)


def test_lanes_of_one_prefill_do_not_disturb_each_other(target: object) -> None:
    prefill = target.prefill(target.encode(tiny_prompt()))
    tree = DraftTree(torch.tensor([9, 20, 21, 22]), shape_of((-1, 0, 0, 2)))
    alone = target.open(prefill, 8, 16).score(tree).logits
    first, second = target.open(prefill, 8, 16), target.open(prefill, 8, 16)
    first.score(DraftTree(torch.tensor([11, 30, 31]), shape_of((-1, 0, 1))))
    first.commit([0, 1, 2])
    assert torch.equal(second.score(tree).logits, alone)


def test_a_session_has_room_for_what_was_announced_and_no_more(target: object) -> None:
    session = target.open(target.prefill(target.encode(tiny_prompt(0))), 4, 3)
    tree = DraftTree(torch.tensor([9, 20, 21]), shape_of((-1, 0, 0)))
    for _ in range(4):
        session.score(tree)
        session.commit([0])
    with pytest.raises(ValueError, match="room"):
        session.score(DraftTree(torch.arange(9), shape_of((-1, *[0] * 8))))


def decode_bytes(ids: Sequence[int], keep_special: bool = False) -> str:
    """Ids below 256 are bytes; 256 is special. Like sentencepiece, the first token loses its
    leading space."""
    text = bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")
    text = text.removeprefix(" ")
    return text + "<end>" * (keep_special and 256 in ids)


@pytest.mark.parametrize(
    "text", ["plain text", " leading", "naïve café", "日本語 ok", "🙂 and 👩‍👩‍👧", "a\n b"]
)
def test_pieces_join_to_the_text_and_no_character_is_torn(text: str) -> None:
    ids = list(text.encode())
    speaker = Detokenizer(TokenTexts(decode_bytes), before=ord("x"))
    pieces = [speaker.say(i, last=n == len(ids) - 1) for n, i in enumerate(ids)]
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert [len(p) for p in pieces].count(0) == len(ids) - len(text)


def test_an_answer_cut_inside_a_character_shows_that_it_is() -> None:
    speaker = Detokenizer(TokenTexts(decode_bytes), before=ord("x"))
    first, second = "é".encode()
    assert speaker.say(first) == "" and speaker.say(ord("!"), last=True).endswith("!")
    assert (
        Detokenizer(TokenTexts(decode_bytes), ord("x")).say(second, last=True)
        == "\N{REPLACEMENT CHARACTER}"
    )


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back() -> None:
    speaker = Detokenizer(TokenTexts(decode_bytes), before=ord("x"))
    pieces = [speaker.say(0x80) for _ in range(6)]
    assert "".join(pieces)


def test_words_keep_their_space_and_special_tokens_have_names() -> None:
    token_texts = TokenTexts(decode_bytes)
    assert token_texts.word(ord(" ")) == " "
    assert token_texts.word(ord("a")) == "a"
    assert token_texts.word(256) == "<end>"


def test_what_was_decoded_once_is_remembered() -> None:
    calls = []
    token_texts = TokenTexts(lambda ids, keep_special=False: calls.append(1) or decode_bytes(ids))
    for _ in range(5):
        Detokenizer(token_texts, ord("x")).say(ord("a"))
        token_texts.word(ord("b"))
    assert len(calls) <= 4


def test_a_small_vocabulary_is_looked_up_ahead() -> None:
    calls = []
    token_texts = TokenTexts(
        lambda ids, keep_special=False: calls.append(1) or decode_bytes(ids), 200
    )
    calls.clear()
    assert [token_texts.word(i) for i in (65, 66, 199)][:2] == ["A", "B"] and not calls

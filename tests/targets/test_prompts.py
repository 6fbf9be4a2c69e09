"""How a conversation becomes a prompt: what is text stays text, token by token."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from specvl_demo.targets.prompts import Film, Prompter, Turn
from specvl_demo.targets.vlm import VLM
from specvl_demo.training import pocket
from tests import pocketlike

PICTURE = Image.new("RGB", (96, 96), (200, 30, 30))


@pytest.fixture(scope="module")
def model_and_processor() -> tuple[torch.nn.Module, object]:
    """The pocket family's, with two added tokens: words joined for brevity, and a mark without the flag."""
    words = pocketlike.tokenizer()
    words.add_tokens([" top left", "<tool>"])
    model = pocket.make_model(len(words), layers=1, hidden=64, ffn=96, tower=(32, 1))
    return model.eval(), pocket.make_processor(words)


@pytest.fixture(scope="module")
def prompter(model_and_processor: tuple[torch.nn.Module, object]) -> Prompter:
    model, processor = model_and_processor
    return Prompter(processor, model)


@pytest.fixture
def runs(prompter: Prompter, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for every time that pictures are made ready."""
    kind, found = type(prompter._processor.image_processor), []
    run = kind.__call__

    def counted(self: object, *args: object, **kwargs: object) -> object:
        found.append(args)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", counted)
    return found


def test_an_answer_of_joined_words_comes_back_as_the_ids_it_was(prompter: Prompter) -> None:
    """Else the next question would show the model another text, and none of the kept rows would hold."""
    said = prompter.ids(" a star above. In the top left is a circle top left")
    assert prompter.ids(" top left")[0] in said
    first = prompter.prompt([Turn("what is it?", (PICTURE,))])
    answer = prompter.lexicon().after(int(first.ids[-1]), tuple(said))
    second = prompter.prompt([Turn("what is it?", (PICTURE,), answer), Turn("is it above?")])
    known = [*first.ids.tolist(), *said]
    assert second.ids.tolist()[: len(known)] == known
    assert f"{answer}<eos>" in second.text


@pytest.mark.parametrize("mark", ["<tool>", "<eos>", "<image>", "<assistant>"])
def test_marks_that_a_person_types_are_taken_apart(prompter: Prompter, mark: str) -> None:
    plain = prompter.prompt([Turn("what is it?", (PICTURE,))])
    typed = prompter.prompt([Turn(f"what is {mark} it?", (PICTURE,))])
    (number,) = prompter.ids(mark)
    assert torch.equal((typed.ids == number).sum(), (plain.ids == number).sum())
    assert len(typed) > len(plain)


def test_pictures_are_made_ready_once_a_conversation(prompter: Prompter, runs: list[object]) -> None:
    """The same inputs as afresh, without a second run; another picture, or one more, is made ready."""
    clip = Film((PICTURE, PICTURE.rotate(90)))
    first = prompter.prompt([Turn("what is it?", (PICTURE, clip))])
    turns = [Turn("what is it?", (PICTURE.copy(), clip), "a star"), Turn("is it above?")]
    again, made = prompter.prompt(turns, before=first), len(runs)
    fresh = prompter.prompt(turns)
    assert (made, len(runs)) == (1, 2)
    assert again.inputs.keys() == fresh.inputs.keys() and again.spans == fresh.spans
    assert all(torch.equal(again.inputs[key], fresh.inputs[key]) for key in fresh.inputs)
    for shown in ((PICTURE.rotate(90), clip), (PICTURE, clip, PICTURE), ()):
        other = prompter.prompt([Turn("what is it?", shown)], before=first)
        same = prompter.prompt([Turn("what is it?", shown)])
        assert all(torch.equal(other.inputs[key], same.inputs[key]) for key in same.inputs)


def test_a_drafter_that_is_asked_in_its_own_way_makes_pictures_ready_once_too(
    prompter: Prompter, model_and_processor: tuple[torch.nn.Module, object], runs: list[object]
) -> None:
    model, processor = model_and_processor
    first = prompter.prompt([Turn("what is it?", (PICTURE,))])
    turns = [Turn("what is it?", (PICTURE,), "a star"), Turn("is it above?")]
    follow = prompter.prompt(turns, before=first)
    drafter = VLM(model, "drafter", again=Prompter(processor, model).again)
    runs.clear()
    before = drafter.encode(first)
    found, made = drafter.encode(follow, before), len(runs)
    fresh = drafter.encode(follow)
    assert (made, len(runs)) == (1, 2)
    assert torch.equal(found.ids, fresh.ids) and torch.equal(found.embeds, fresh.embeds)

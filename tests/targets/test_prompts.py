"""How a conversation becomes a prompt: what is text stays text, token by token."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from specvl_demo.targets.prompts import Film, Prompter, Turn
from specvl_demo.training import pocket
from tests import pocketlike

PICTURE = Image.new("RGB", (96, 96), (200, 30, 30))


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    """The pocket family's, with two added tokens: words joined for brevity, and a mark without the flag."""
    words = pocketlike.tokenizer()
    words.add_tokens([" top left", "<tool>"])
    model = pocket.make_model(len(words), layers=1, hidden=64, ffn=96, tower=(32, 1))
    return Prompter(pocket.make_processor(words), model)


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


def test_pictures_are_made_ready_once_a_conversation(
    prompter: Prompter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same inputs as afresh, without a second run; another picture, or one more, is made ready."""
    kind, runs = type(prompter._processor.image_processor), []
    run = kind.__call__

    def counted(self: object, *args: object, **kwargs: object) -> object:
        runs.append(args)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", counted)
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

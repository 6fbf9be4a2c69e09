"""How a conversation becomes a prompt: what is text stays text, token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image

from specvl_demo.core.prefix_cache import PrefixCache
from specvl_demo.training import pocket
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.layouts import Shown, spans
from specvl_demo.vlm.prompts import PromptBuilder, Turn, VideoFrames
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
def prompter(model_and_processor: tuple[torch.nn.Module, object]) -> PromptBuilder:
    model, processor = model_and_processor
    return PromptBuilder(processor, model)


@pytest.fixture
def runs(prompter: PromptBuilder, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for every time that pictures are made ready."""
    kind, found = type(prompter._processor.image_processor), []
    run = kind.__call__

    def counted(self: object, *args: object, **kwargs: object) -> object:
        found.append(args)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", counted)
    return found


def test_an_answer_of_joined_words_comes_back_as_the_ids_it_was(prompter: PromptBuilder) -> None:
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
def test_marks_that_a_person_types_are_taken_apart(prompter: PromptBuilder, mark: str) -> None:
    plain = prompter.prompt([Turn("what is it?", (PICTURE,))])
    typed = prompter.prompt([Turn(f"what is {mark} it?", (PICTURE,))])
    (number,) = prompter.ids(mark)
    assert torch.equal((typed.ids == number).sum(), (plain.ids == number).sum())
    assert len(typed) > len(plain)


def test_pictures_are_made_ready_once_a_conversation(prompter: PromptBuilder, runs: list[object]) -> None:
    """The same inputs as afresh, without a second run; another picture, or one more, is made ready."""
    clip = VideoFrames((PICTURE, PICTURE.rotate(90)))
    cache = PrefixCache()
    prompter.prompt([Turn("what is it?", (PICTURE, clip))], cache=cache)
    turns = [Turn("what is it?", (PICTURE.copy(), clip), "a star"), Turn("is it above?")]
    again, made = prompter.prompt(turns, cache=cache), len(runs)
    fresh = prompter.prompt(turns)
    assert (made, len(runs)) == (1, 2)
    assert again.inputs.keys() == fresh.inputs.keys() and again.spans == fresh.spans
    assert all(torch.equal(again.inputs[key], fresh.inputs[key]) for key in fresh.inputs)
    for shown in ((PICTURE.rotate(90), clip), (PICTURE, clip, PICTURE), ()):
        other = prompter.prompt([Turn("what is it?", shown)], cache=cache)
        same = prompter.prompt([Turn("what is it?", shown)])
        assert all(torch.equal(other.inputs[key], same.inputs[key]) for key in same.inputs)


def test_a_drafter_that_is_asked_in_its_own_way_makes_pictures_ready_once_too(
    prompter: PromptBuilder, model_and_processor: tuple[torch.nn.Module, object], runs: list[object]
) -> None:
    model, processor = model_and_processor
    cache = PrefixCache()
    first = prompter.prompt([Turn("what is it?", (PICTURE,))], cache=cache)
    follow = prompter.prompt([Turn("what is it?", (PICTURE,), "a star"), Turn("is it above?")], cache=cache)
    drafter = VLM(model, "drafter", again=PromptBuilder(processor, model).again)
    runs.clear()
    drafter.encode(first)
    found, made = drafter.encode(follow), len(runs)
    fresh = drafter.encode(replace(follow, cache=None))
    assert (made, len(runs)) == (1, 2)
    assert torch.equal(found.ids, fresh.ids) and torch.equal(found.embeds, fresh.embeds)


def test_words_behind_a_pictures_patches_are_no_patches() -> None:
    """Two pictures of 3 by 3 patches, each followed by 2 tokens that stand for no place."""
    visual = torch.tensor([False, *[True] * 11, False, *[True] * 11, False])
    shown = [Shown("image", 10, 10), Shown("image", 20, 10)]
    found = spans(None, {"pixel_values": torch.zeros(2, 3, 4, 4)}, visual, shown, words=2)
    assert [(s.media, s.start, s.stop, s.rows, s.cols) for s in found] == [
        (0, 1, 10, 3, 3),
        (0, 10, 12, None, None),
        (1, 13, 22, 3, 3),
        (1, 22, 24, None, None),
    ]

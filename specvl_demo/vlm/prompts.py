"""Builds a `Prompt` from a question with pictures and clips, in one model's chat format.

Given a Hugging Face processor and its model, knows the chat template, the placeholders, and which
positions show which picture. Special tokens that a person types are split, so that text stays text.
Knows nothing of files: pictures are PIL images, a clip is its frames.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from jinja2 import TemplateError
from PIL import Image

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.faults import cause
from specvl_demo.core.types import Prompt
from specvl_demo.media import PLACE, VideoFrames, Visual
from specvl_demo.question import Medium, Question, Turn
from specvl_demo.vlm.encoder import context_length, placeholder_ids
from specvl_demo.vlm.layouts import MediaSize, media_spans

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SMALL_VOCABULARY = 4096


_BEFORE = "first words"
_AFTER = "last words"
_SYSTEM = "words before all"
"""What a chat template is tried with."""


class _TemplateFormat(NamedTuple):
    """What a chat template takes.

    Attributes:
        parts: Messages as lists of parts; else as text with placeholders in it.
        system: A system message.
        ordered: Pictures between texts, which it leaves there.
    """

    parts: bool
    system: bool
    ordered: bool


class PromptBuilder:
    """Builds one model's prompts. Shared by requests; keeps nothing of them.

    context: The most tokens that prompt and answer may have together.
    """

    def __init__(self, processor: Any, model: PreTrainedModel) -> None:
        self._processor = processor
        self._tokenizer = processor.tokenizer
        self._accepts = set(inspect.signature(model.forward).parameters)
        # Visual tokens of a picture that represent words about it, not places in it.
        self._words: int = getattr(model.config.vision_config, "word_rows", 0)
        self.context = context_length(model.config)
        # An added token of letters and digits is text, merged for brevity: a space inserted into it
        # would change the text that the model reads.
        added = self._tokenizer.get_added_vocab()
        marks = {word for word in added if not word.replace(" ", "").isalnum()}
        self._special = sorted({*self._tokenizer.all_special_tokens, *marks}, key=len, reverse=True)
        # Families without a video processor get a clip as pictures in order.
        self._films = getattr(processor, "video_processor", None) is not None
        # Gemma's templates write the mark before a picture, which its processor expands.
        self._mark: str = getattr(processor, "boi_token", None) or processor.image_token
        self._format = self._try_template()
        self._visual = placeholder_ids(model.config)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer: the tokenizer's own, which a generation_config may leave out."""
        end = self._tokenizer.eos_token_id
        return frozenset() if end is None else frozenset((end,))

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids with a meaning beyond text; never relaxed by a relaxed verifier."""
        return frozenset(self._tokenizer.all_special_ids)

    def token_texts(self) -> TokenTexts:
        """Return the cache of token texts, for the lanes of one request or many."""
        size = len(self._tokenizer)
        return TokenTexts(self._decode, size if size <= _SMALL_VOCABULARY else 0)

    def ids(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def word_ids(self) -> dict[str, tuple[int, ...]]:
        """Return the ids that views put in place of pictures; see `methods.base.Models`."""
        grey = Image.new("RGB", (64, 64), (127, 127, 127))
        probe = self.prompt(Question("Describe the picture.", (grey,)), room=0)
        last = int(probe.visual.nonzero().max())
        return {
            # Some tokenizers put another token before a newline; the newline is the last.
            "newline": tuple(self.ids("\n")[-1:]),
            "caption": tuple(self.ids("image: ")),
            "describe": tuple(probe.ids[last + 1 :].tolist()),
        }

    def prompt(self, question: Question, room: int | None = None) -> Prompt:
        """Return the prompt of an opened question.

        room: How many tokens the answer may have; None for as many as the question asks.

        Raises:
            ValueError: If prompt and answer do not fit the context, if the model does not support a
                system prompt, or if the prefix has ids that are not text.
        """
        turns = question.turns
        system = question.system
        if room is None:
            room = 1 if question.up_to else question.max_new_tokens
        if system.strip() and not self._format.system:
            raise ValueError("This model takes no system prompt; put it into the question.")
        if not self._format.ordered and any(_has_media_between(turn) for turn in turns):
            raise ValueError(
                "This model's chat format has pictures before the text: send them first, and tell"
                " in the text which is which."
            )
        text = self._chat_text(turns, system)
        media = cast("list[Visual]", [item for turn in turns for item in turn.shown])
        inputs = self._run_processor(text, media)
        visual = torch.isin(inputs["input_ids"][0], torch.tensor(self._visual))
        sizes = [self._media_size(item) for item in media]
        where = media_spans(self._processor, inputs, visual, sizes, self._words)
        prefix = self._prefix(question.prefix)
        inputs = with_prefix(inputs, prefix)
        ids = inputs["input_ids"][0]
        visual = F.pad(visual, (0, len(prefix)))
        if len(ids) + room > self.context:
            raise ValueError(
                f"The prompt has {len(ids)} tokens and the answer may have"
                f" {question.max_new_tokens}; together this model allows at most {self.context}."
            )
        return Prompt(ids, visual, inputs, where, text, replace(question, prefix=prefix), prefix)

    def rebuild(self, prompt: Prompt) -> Prompt:
        """Build another model's prompt again from its source, in this model's format."""
        return self.prompt(prompt.source, room=0)

    def _chat_text(self, turns: Sequence[Turn], system: str = "", parts: bool | None = None) -> str:
        """Return a conversation in the model's chat format.

        parts: Whether messages are lists of parts or texts; None for what it takes.
        """
        messages = [self._message("system", system)] if system.strip() else []
        for turn in turns:
            messages.append(self._message("user", turn.question, turn.shown))
            if turn.answer is not None:
                messages.append(self._message("assistant", turn.answer))
        if not (self._format.parts if parts is None else parts):
            marks = {"image": self._mark, "video": getattr(self._processor, "video_token", "")}
            for message in messages:
                texts = (
                    part.get("text") or marks[part["type"]] + "\n" for part in message["content"]
                )
                message["content"] = "".join(texts)
        try:
            return self._processor.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except (TemplateError, TypeError, AttributeError, LookupError) as fault:
            raise ValueError(
                f"This model's chat template cannot be used: {cause(fault)}."
            ) from None

    def _try_template(self) -> _TemplateFormat:
        """Find out what the chat template takes, by using it.

        Raises:
            ValueError: With a sentence if it takes neither lists of parts nor texts.
        """
        media = (Image.new("RGB", (8, 8)),)

        def tried(parts: bool) -> _TemplateFormat | None:
            plain, text = (
                self._chat_text([Turn(_AFTER, some)], parts=parts) for some in ((), media)
            )
            without = text == plain and self._mark not in text
            if _AFTER not in text or "'text'" in text or without:
                return None
            n = text.count(self._mark)
            between = ""
            system = ""
            with suppress(ValueError):
                probe = Turn(f"{_BEFORE}{PLACE}{_AFTER}", media)
                between = self._chat_text([probe], parts=parts)
                between = between.rpartition(_BEFORE)[2].partition(_AFTER)[0]
            with suppress(ValueError):
                system = self._chat_text([Turn(_AFTER, media)], _SYSTEM, parts)
            takes_system = _SYSTEM in system and system.count(self._mark) == n
            return _TemplateFormat(parts, takes_system, bool(between.strip()))

        reason = None
        for parts in (True, False):
            try:
                if (message := tried(parts)) is not None:
                    return message
            except ValueError as fault:
                reason = reason or fault
        raise reason or ValueError("This model's chat template leaves out the question or media.")

    def _prefix(self, prefix: str | Sequence[int]) -> tuple[int, ...]:
        """Return the ids of an answer's prefix; ValueError if one is not text."""
        ids = self.ids(prefix) if isinstance(prefix, str) else prefix
        no_text = {*self.special_ids, *self._visual}
        for token in ids:
            if token in no_text or not 0 <= token < len(self._tokenizer):
                raise ValueError(
                    f"An answer cannot continue from token {token}: it is not text of this model."
                )
        return tuple(ids)

    def _message(self, role: str, text: str, media: Sequence[Medium] = ()) -> dict[str, Any]:
        """Return a message of the chat template: placeholders of what is shown where the text marks
        their places, else before the text.
        """
        texts = text.split(PLACE)
        if len(texts) != len(media) + 1:
            texts = [*[""] * len(media), "".join(texts)]
        content = []
        for item, words in zip((None, *media), texts):
            if isinstance(item, VideoFrames) and self._films:
                content.append({"type": "video"})
            elif item is not None:
                n = len(item.frames) if isinstance(item, VideoFrames) else 1
                content += [{"type": "image"}] * n
            if words or not media:
                content.append({"type": "text", "text": self._without_marks(words)})
        return {"role": role, "content": content}

    def _decode(self, ids: Sequence[int], keep_special: bool = False) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=not keep_special, clean_up_tokenization_spaces=False
        )

    def _without_marks(self, text: str) -> str:
        """Return the text with a space in everything that would be read as a special token."""
        for special in self._special:
            if len(special) > 1 and special.strip() and special in text:
                text = text.replace(special, f"{special[:1]} {special[1:]}")
        return text

    def _run_processor(self, text: str, media: Sequence[Visual]) -> dict[str, Any]:
        images: list[Image.Image] = []
        clips = []
        for item in media:
            if isinstance(item, VideoFrames) and self._films:
                clips.append(item)
            else:
                images += item.frames if isinstance(item, VideoFrames) else (item,)
        more: dict[str, Any] = {}
        if images:
            more["images"] = images
        if clips:
            # A list for each prompt, of arrays [frames, height, width, 3], which every processor
            # accepts.
            more["videos"] = [[np.stack(list(map(np.asarray, clip.frames))) for clip in clips]]
            more["video_metadata"] = [_clip_metadata(clip) for clip in clips]
            more["do_sample_frames"] = False
        # The template has already written the beginning of the sequence.
        begins = bool(self._tokenizer.bos_token) and text.startswith(self._tokenizer.bos_token)
        made = self._processor(
            text=[text], return_tensors="pt", add_special_tokens=not begins, **more
        )
        return {name: value for name, value in made.items() if name in self._accepts}

    def _media_size(self, item: Visual) -> MediaSize:
        """Return what the layout of a prompt depends on."""
        if isinstance(item, VideoFrames):
            frame = item.frames[0]
            return MediaSize(
                "video", frame.height, frame.width, len(item.frames), as_clip=self._films
            )
        return MediaSize("image", item.height, item.width)


def _has_media_between(turn: Turn) -> bool:
    """Whether a question has a picture after some of its text."""
    before = turn.question.partition(PLACE)[0]
    return turn.question.count(PLACE) == len(turn.shown) > 0 and bool(before.strip())


def with_prefix(inputs: dict[str, Any], prefix: Sequence[int]) -> dict[str, Any]:
    """Append text to a processor's output: its [1, n] tensors become [1, n + prefix]."""
    if not prefix:
        return inputs
    shape = inputs["input_ids"].shape
    more = torch.tensor([prefix])
    fill = {"input_ids": more, "attention_mask": torch.ones_like(more)}
    # Other tensors with one entry per token mark its kind; text is 0.
    return {
        name: torch.cat((value, fill.get(name, torch.zeros_like(more)).to(value.dtype)), dim=1)
        if getattr(value, "shape", None) == shape
        else value
        for name, value in inputs.items()
    }


def _clip_metadata(clip: VideoFrames) -> dict[str, Any]:
    """Return what the library needs to know of frames that are already sampled.

    It derives the times that prompts name from numbers of frames: these are milliseconds.
    """
    n = len(clip.frames)
    times = [round(1000 * at) for at in clip.times_s or range(n)]
    span = times[-1] - times[0] if n > 1 else 0
    each = span / (n - 1) if span else 1000.0
    return {
        "total_num_frames": round(n * each),
        "fps": 1000.0,
        "frames_indices": times,
        "duration": n * each / 1000,
        "height": clip.frames[0].height,
        "width": clip.frames[0].width,
    }

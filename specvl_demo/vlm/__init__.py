"""Vision-language models: loading, prompts, encoders. All differences between families live here.

`decoders` is imported first: it declares torchvision's operators, without which importing
transformers fails.
"""

from specvl_demo import decoders as decoders

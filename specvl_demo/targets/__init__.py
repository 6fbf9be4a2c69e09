"""How vision-language models prefill, score a tree and keep a path. Family differences live here only."""

from specvl_demo.targets import torchvision_ops

# The one thing here that happens at import: it has to come before the first import of transformers, which
# fails where torchvision does.
OPERATORS = torchvision_ops.declare()

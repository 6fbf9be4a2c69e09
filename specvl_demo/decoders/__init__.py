"""The decoder runtime: KV cache, cached sequences, backends and timing. Knows no pictures and no methods."""

from specvl_demo.decoders import torchvision_ops

# The one thing here that happens at import: it has to come before the first import of transformers, which
# fails where torchvision does.
OPERATORS = torchvision_ops.declare()

"""SpecVL demo: speculative decoding for vision-language models, watched round by round."""

__version__ = "0.1.0"

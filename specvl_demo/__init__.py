"""SpecVL demo: speculative decoding of vision-language models, watched round by round.

Importing this package does nothing but name its version.
"""

__version__ = "0.1.0"

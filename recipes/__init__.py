"""Recipes: make the photo pair's weights and drafters for any pair. Nothing imports them.

The drawn scenes and the recipe of the pocket pair's weights are frozen: commit 56e9f08 has them.
"""

import specvl_demo as specvl_demo  # first: transformers needs a torchvision that can be imported

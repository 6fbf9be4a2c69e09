"""Recipes: make the photo pair's weights and drafters for any pair. Nothing imports them.

The drawn scenes and the recipe of the pocket pair's weights are frozen: commit 56e9f08 has them.
"""

"""The drawn world of the pocket pair: scenes, texts about them, renderers, evaluation."""

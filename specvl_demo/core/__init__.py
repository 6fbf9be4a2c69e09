"""The engine: one loop over drafted trees. Knows tokens and tensors, no pictures and no JSON."""

"""Draft heads on a target's features: blocks, published checkpoint formats, drafting."""

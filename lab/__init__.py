"""The laboratory: what measures the demo and its methods. Nothing imports it."""

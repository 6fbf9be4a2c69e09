"""The decoder runtime: caches, sequences, backends, timing. Knows no pictures and no methods."""

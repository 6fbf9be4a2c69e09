"""How vision-language models prefill, score a tree and keep a path. Family differences live here only."""

"""Vision-language models: loading, prompts, encoders. All differences of families live here."""

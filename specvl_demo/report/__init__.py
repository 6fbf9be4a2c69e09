"""Folds over records: all that is shown. Needs neither torch nor gradio."""

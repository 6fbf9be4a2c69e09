"""Folds over records: every number, colour, chart and table that is shown. Needs neither torch nor
gradio.
"""

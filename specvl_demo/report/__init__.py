"""Folds over records: every number, colour, chart and table anyone sees. Without torch, without
gradio.
"""

"""Pictures, texts and recipes for training the shipped models; importing this package loads nothing
heavy.
"""

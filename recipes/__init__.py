"""Pictures, texts and recipes that make the pocket models; importing this package loads nothing
heavy.
"""

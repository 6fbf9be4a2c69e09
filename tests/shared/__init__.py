"""What the tests, the laboratory and the recipes' own tests share: tiny models, heads and families,
lanes made by hand, files of every kind, and a served page with its visitors. It imports none of
them.
"""

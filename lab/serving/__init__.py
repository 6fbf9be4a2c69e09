"""Random visitors against a running page."""

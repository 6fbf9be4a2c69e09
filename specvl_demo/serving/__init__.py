"""A pair, from loading it to a race on it."""

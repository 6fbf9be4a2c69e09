"""A pair from the question whether it runs here to a race on it."""

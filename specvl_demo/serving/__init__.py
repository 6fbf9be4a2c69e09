"""A pair, from the question whether it runs on this machine to a race on it."""

"""The recipes' own tests, by `python -m pytest recipes/tests`: no part of `make test`."""

from tests.conftest import llava, one_thread, target  # noqa: F401 - a tiny random target

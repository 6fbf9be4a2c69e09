"""The laboratory's own tests, by `python -m pytest lab/tests`: no part of `make test`."""

from tests.unit.compare.conftest import loaded  # noqa: F401 - a pair with random weights

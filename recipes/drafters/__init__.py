"""Training drafters on the target's stored features: what they share, and one file per kind."""

from importlib import import_module
from pkgutil import iter_modules

from recipes.drafters.base import KINDS

__all__ = ["KINDS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

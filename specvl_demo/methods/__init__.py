"""Decoding methods, one file each. Importing the package registers the methods of all its files.

Files named in the environment variable SPECVL_METHODS are read after them; see
docs/adding-a-method.md.
"""

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules

from specvl_demo.methods.base import METHODS

OUTSIDE = "SPECVL_METHODS"


def _run_plugin(path: str) -> None:
    """Run a file that registers methods, once, as a module named after the file."""
    name = Path(path).stem
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise FileNotFoundError(f"{OUTSIDE} names {path}, which is not a Python file")
    if name in sys.modules:
        there = getattr(sys.modules[name], "__file__", None) or ""
        if Path(there).resolve() != Path(path).resolve():
            raise ValueError(
                f"{OUTSIDE} names {path}, but another module is called {name}: rename the file"
            )
        return
    before = len(METHODS)
    sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except SyntaxError as fault:
        raise ValueError(
            f"{OUTSIDE} names {path}, whose line {fault.lineno} is not valid Python: {fault.msg}"
        ) from fault
    except (ImportError, ValueError) as fault:
        raise ValueError(f"{OUTSIDE} names {path}, which cannot be imported: {fault}") from fault
    if len(METHODS) == before:
        raise ValueError(f"{OUTSIDE} names {path}, which registers no method")


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
for _path in os.environ.get(OUTSIDE, "").split(os.pathsep):
    if _path:
        _run_plugin(_path)

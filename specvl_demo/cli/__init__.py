"""The commands of `python -m specvl_demo`: parsing, running, printing."""

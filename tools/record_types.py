"""Writes the records as TypeScript types, by which the page's scripts are checked.

    python -m tools.record_types     after a change of records.py or report/remarks.py

The page reads records under the schema's own names (js/records/records.d.ts); a test compares that
file with the schema. A field that has a default may be missing in a trace. Browsers do not load it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from specvl_demo import records
from specvl_demo.places import PACKAGE
from specvl_demo.report.remarks import Remarks

FILE = PACKAGE / "ui" / "assets" / "js" / "records" / "records.d.ts"
HEAD = "/* What the engine records, made by tools/record_types.py: change records.py instead. */"
PRIMITIVES = {"string": "string", "boolean": "boolean", "null": "null"} | dict.fromkeys(
    ("integer", "number"), "number"
)
UNIONS = {"Scalar": records.Scalar, "Inner": records.Inner, "Value": records.Value}
"""The unions of records.py that keep their name."""


def render(schema: dict[str, Any], names: dict[str, str]) -> str:
    """Return the type of a JSON schema. names: what stands for a union, by its written form."""
    if "$ref" in schema:
        return schema["$ref"]
    if "enum" in schema:
        return " | ".join(map(_literal, schema["enum"]))
    if "anyOf" in schema:
        union = " | ".join(dict.fromkeys(render(part, names) for part in schema["anyOf"]))
        return names.get(union, union)
    if schema["type"] == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(render(item, names) for item in schema['prefixItems'])}]"
        item = render(schema["items"], names)
        return f"({item})[]" if "|" in item else f"{item}[]"
    if schema["type"] == "object":
        return f"{{ [name: string]: {render(schema['additionalProperties'], names)} }}"
    return PRIMITIVES[schema["type"]]


def _literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def _comment(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) == 1:
        return [f"/** {lines[0]} */"]
    return ["/**", *(f" * {line}".rstrip() for line in lines), " */"]


def _interface(schema: dict[str, Any], names: dict[str, str]) -> list[str]:
    needed = {"kind", *schema["required"]}
    fields = [
        f"  {name}{'' if name in needed else '?'}: {render(of, names)};"
        for name, of in schema["properties"].items()
    ]
    head = f"interface {schema['title']} {{"
    return [*_comment(schema.get("description", "")), head, *fields, "}"]


def declarations() -> str:
    """Return the whole file."""
    names: dict[str, str] = {}
    aliases = []
    for name, union in UNIONS.items():
        written = render(msgspec.json.schema(union), names)
        names[written] = name
        aliases.append(f"type {name} = {written};")
    kinds = (records.Begin, records.Round, records.End, Remarks)
    _, parts = msgspec.json.schema_components(kinds, ref_template="{name}")
    either = " | ".join(kind.__name__ for kind in kinds)
    blocks = [HEAD, "\n".join(aliases), f"type AnyRecord = {either};"]
    blocks += ["\n".join(_interface(schema, names)) for schema in parts.values()]
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    FILE.write_text(declarations(), encoding="utf-8")

"""TypeScript's declarations of the API, from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

HEAD = """\
// The types of the API, from its OpenAPI document. Write them anew, with the reviewed document:
// VOUCH_WRITE_OPENAPI=1 .venv/bin/pytest tests/service/test_openapi.py -k reviewed
export as namespace Api;
"""

PLAIN = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}
WITHOUT_TYPE = {"title", "description", "default", "examples"}


def declarations(document: dict[str, Any]) -> str:
    """Return a module with a type of each schema, and ``Operations``: all, by method and path.

    An operation has the types of its ``path``, its ``query``, its ``json`` or ``form``, and its
    ``answer``. An answer that is not JSON is ``unknown``.

    Raises
    ------
    ValueError : a schema is of a kind that is not translated.
    """
    schemas = sorted(document["components"]["schemas"].items())
    types = [f"export type {name} = {_type(schema, '')};\n" for name, schema in schemas]
    operations = [
        f'  "{method.upper()} {path}": {_operation(operation)};\n'
        for path, methods in sorted(document["paths"].items())
        for method, operation in sorted(methods.items())
    ]
    return "".join([HEAD, *types, "export interface Operations {\n", *operations, "}\n"])


def _operation(operation: dict[str, Any]) -> str:
    parts = {}
    for place in ("path", "query"):
        sent = [one for one in operation.get("parameters", ()) if one["in"] == place]
        required = {one["name"] for one in sent if one.get("required")}
        if sent:
            name = place if required else f"{place}?"
            parts[name] = _object(((one["name"], one["schema"]) for one in sent), required, "    ")
    body = operation.get("requestBody", {}).get("content", {})
    for name, kind in (("json", "application/json"), ("form", "multipart/form-data")):
        if kind in body:
            parts[name] = _type(body[kind]["schema"], "    ")
    [answer] = [one for status, one in operation["responses"].items() if status.startswith("2")]
    schema = answer["content"].get("application/json", {}).get("schema", {})
    parts["answer"] = _type(schema, "    ")
    return "{\n" + "".join(f"    {name}: {kind};\n" for name, kind in parts.items()) + "  }"


def _type(schema: dict[str, Any], indent: str) -> str:
    match schema:
        case {"$ref": str(reference)}:
            text = reference.rpartition("/")[2]
        case {"anyOf": choices}:
            text = " | ".join(dict.fromkeys(_type(one, indent) for one in choices))
        case {"const": value}:
            text = json.dumps(value)
        case {"enum": values}:
            text = " | ".join(map(json.dumps, values))
        case {"type": "array", "prefixItems": items}:
            text = f"[{', '.join(_type(one, indent) for one in items)}]"
        case {"type": "array", "items": item}:
            text = f"({_type(item, indent)})[]"
        case {"type": "object", "properties": properties}:
            text = _object(properties.items(), set(schema.get("required", ())), indent)
        case {"type": "object", "additionalProperties": True}:
            text = "Record<string, unknown>"
        case {"type": "object", "additionalProperties": value}:
            text = f"Record<string, {_type(value, indent)}>"
        case {"type": str(name)} if name in PLAIN:
            text = PLAIN[name]
        case _ if schema.keys() <= WITHOUT_TYPE:
            text = "unknown"
        case _:
            raise ValueError(f"Not translated to TypeScript: {json.dumps(schema)[:200]}")
    return text


def _object(
    properties: Iterable[tuple[str, dict[str, Any]]], required: set[str], indent: str
) -> str:
    lines = [
        f"{indent}  {name}{'' if name in required else '?'}: {_type(schema, indent + '  ')};\n"
        for name, schema in properties
    ]
    return "{\n" + "".join(lines) + indent + "}"

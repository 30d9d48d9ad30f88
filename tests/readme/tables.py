"""Tables of settings in the READMEs, made from the models that read them: ``make tables``.

So is the JSON schema of a build's file.

A table lies between ``<!-- NAME: make tables -->`` and ``<!-- end of NAME -->``.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.file import schema_file
from index_builder.configuration.schema import SCHEMA_FILE
from index_builder.configuration.section import RULE
from service.settings import Settings, settings_in_groups

ROOT = Path(__file__).parents[2]
VARIANTS = ("method", "kind")
"""Keys that say which of several models a table is; of other tables they are keys like any."""

PLACES = {"settings": "service/README.md", "configuration": "index_builder/README.md"}


def default_of(field: FieldInfo) -> str:
    """Return a field's default as a reader writes it."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and RULE in extra:
        return str(extra[RULE])
    if field.is_required():
        return "required"
    return _as_written(field.get_default(call_default_factory=True))


def _as_written(value: object) -> str:
    """Return a value as a reader writes it."""
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    if value in (None, "", {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value // 2**20:,} MiB"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else f"{value}"
    return f"`{value}`"


def choices_of(annotation: Any) -> list[str]:
    """Return the literals that an annotation allows, None left out."""
    if typing.get_origin(annotation) is typing.Literal:
        return [str(one) for one in typing.get_args(annotation) if one is not None]
    if typing.get_origin(annotation) in {typing.Union, types.UnionType, typing.Annotated}:
        return [name for one in typing.get_args(annotation) for name in choices_of(one)]
    return []


def meaning_of(field: FieldInfo) -> str:
    """Return a field's description, with its choices where they are not in it."""
    text = " ".join((field.description or "").split()).replace("|", "\\|")
    missing = [name for name in choices_of(field.annotation) if name not in text]
    listed = ", ".join(f"`{name}`" for name in missing)
    return f"{text} ({listed})" if missing else text


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that an annotation is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for one in typing.get_args(annotation) for model in models_of(one)]


def settings_table() -> str:
    """Return the service's environment variables as a table."""
    rows = []
    for title, names in settings_in_groups().items():
        rows.append(f"| **{title}** | | |")
        for name in names:
            field = Settings.model_fields[name]
            rows.append(f"| `VOUCH_{name.upper()}` | {default_of(field)} | {meaning_of(field)} |")
    return "\n".join(["| variable | default | |", "|---|---|---|", *rows])


def configuration_table() -> str:
    """Return the keys of a build's TOML file as a table."""
    rows = list(_rows(BuildConfig, ""))
    return "\n".join(["| table | key | default | |", "|---|---|---|---|", *rows])


def _rows(model: type[BaseModel], table: str, variant: str = "") -> Iterator[str]:
    nested = []
    for name, field in model.model_fields.items():
        models = models_of(field.annotation)
        if models:
            nested.append((name, models, typing.get_origin(field.annotation) is tuple))
        elif not variant or name not in VARIANTS:
            meaning = meaning_of(field)
            yield f"| {table}{variant} | `{name}` | {default_of(field)} | {meaning} |"
    for name, models, repeated in nested:
        inside = f"{table.strip('`[]')}.{name}".lstrip(".")
        for each in models:
            called = _variant_of(each) if len(models) > 1 else ""
            yield from _rows(each, f"`[[{inside}]]`" if repeated else f"`[{inside}]`", called)


def _variant_of(model: type[BaseModel]) -> str:
    """Return which of a table's variants a model is."""
    (key,) = set(VARIANTS) & set(model.model_fields)
    names = choices_of(model.model_fields[key].annotation)
    return " with " + " or ".join(f'`{key} = "{name}"`' for name in names)


def with_table(text: str, name: str, table: str) -> str:
    """Return ``text`` with the table of that name exchanged."""
    begin, end = f"<!-- {name}: make tables -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    assert pattern.search(text), f"{begin} … {end} is missing"
    return pattern.sub(lambda _: f"{begin}\n{table}\n{end}", text)


TABLES = {"settings": settings_table, "configuration": configuration_table}

if __name__ == "__main__":
    for name, make in TABLES.items():
        path = ROOT / PLACES[name]
        path.write_text(with_table(path.read_text("utf-8"), name, make()), "utf-8")
    SCHEMA_FILE.write_text(schema_file(), "utf-8")

"""Writes a configuration as a TOML file: with all values, or with comments as a starting point."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

import tomli_w

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.schema import (
    RULE,
    SCHEMA_FILE,
    Schema,
    accepted,
    bounds_of,
    choices_of,
    is_array_of_tables,
    is_table,
    published_schema,
    schema_of,
    tags_of,
    variants_of,
)
from model_store.installation import installed_version

FIRST = (
    "name",
    "dataset.path",
    "dataset.withheld_labels",
    "network.encoder",
    "calibration.max_error",
    "calibration.max_false_match_rate",
    "index.previews",
)
"""The keys that users change first. In `starting_file`, these keys and their tables are at the
top."""

_FIRST_TABLES = tuple(dict.fromkeys(key.partition(".")[0] for key in FIRST if "." in key))

EXAMPLE = "For example:"
"""Text in front of a key without a default value; the value of such a key is an example."""

_FOLDER = "photographs"
"""The folder of images in `starting_file`."""

_WIDTH = 96

_HEAD = """\
#:schema {schema}
# A build of Vouch: `vouch-build all --config {file}`.
# A key after "#" has its default value. To change the value, remove the "#".
# `vouch-build config show --config {file}` prints all keys with their values.
"""


def effective_file(config: BuildConfig) -> str:
    """Return the file of a build with all keys, including defaults.

    All paths are absolute, so the file gives the same build from any folder.
    """
    dumped = config.model_dump(mode="json", exclude_none=True)
    order = dict.fromkeys(("name", "description", "seed", *_FIRST_TABLES, *dumped))
    tables = {name: dumped[name] for name in order if dumped.get(name, []) != []}
    return (
        f"# All keys of this build, for Vouch {installed_version()}.\n"
        f"# Keys that are missing here have no value.\n{tomli_w.dumps(tables)}"
    )


def starting_file(called: str) -> str:
    """Return a file with comments for a build of photographs, for users to edit.

    Parameters
    ----------
    called : the file's name.
    """
    config = BuildConfig.model_validate({"dataset": {"path": _FOLDER}})
    values = config.model_dump(mode="json", exclude_none=True)
    values["dataset"]["path"] = _FOLDER
    schema = schema_of(BuildConfig)
    parts = [_HEAD.format(schema=SCHEMA_FILE.as_uri(), file=called)]
    parts += _of_table(schema, "", values)
    for table in _tables():
        node = schema["properties"][table]
        parts.append(f"\n[{table}]")
        parts += _of_table(node, table, values[table])
    for name, node in schema["properties"].items():
        if is_array_of_tables(node):  # the default is empty, so all values are examples
            parts.append(f"\n# {node.get('description', '')} {EXAMPLE}\n#[[{name}]]")
            keys = node["items"]["properties"]
            parts += _of_table(node["items"], name, {key: _example(keys[key]) for key in keys})
    return "\n".join(parts)


def schema_file() -> str:
    """Return the content of `SCHEMA_FILE`, generated from the models."""
    return json.dumps(published_schema(BuildConfig), indent=1, ensure_ascii=False) + "\n"


def _tables() -> list[str]:
    """Return the names of the tables; tables of the keys in `FIRST` come first."""
    nodes = schema_of(BuildConfig)["properties"]
    return list(dict.fromkeys([*_FIRST_TABLES, *(name for name in nodes if is_table(nodes[name]))]))


def _of_table(node: Schema, table: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a paragraph for each key of a table.

    If there are alternative tables, the paragraphs are for the keys of the default table.
    """
    chosen, *others = variants_of(node)
    keys = list(chosen["properties"])
    for key in sorted(keys, key=lambda one: _place_among_first(f"{table}.{one}".lstrip("."))):
        about = chosen["properties"][key]
        variants = variants_of(about)
        if not table and (is_table(about) or is_array_of_tables(about)):  # separate sections
            continue
        value, text = values.get(key), about.get("description", "")
        if is_table(about):
            value = values[key]["kind"]
            text = f"{text} One of {_names(variants)}; or a table [{table}.{key}] with `kind` and "
            text += "its own keys, which `vouch-build config schema` lists."
        elif others and key == (tags_of(chosen) or [""])[0]:
            text = f"One of {_names([chosen, *others])}. Each has its own keys, which "
            text += "`vouch-build config schema` lists. The keys below belong to the default."
        elif not set(choices_of(about)) <= set(re.findall(r"[\w-]+", text)) or bounds_of(about):
            text = f"{text} Wanted: {accepted(about)}."
        yield _paragraph(key, text, value, about, given=f"{table}.{key}" == "dataset.path")


def _paragraph(key: str, text: str, value: object, about: Schema, *, given: bool) -> str:
    """Return a key below its description. The key is commented out unless it is ``given``."""
    if RULE in about:
        text += f" Default: {about[RULE]}."
    lines = [f"# {line}" for line in wrap(text, _WIDTH - 2, break_on_hyphens=False)]
    if value is None:
        lines.append(f"# Default: none. {EXAMPLE}")
        value = _example(about)
    literal = json.dumps(value, ensure_ascii=False)
    return "\n".join([*lines, f"{'' if given else '#'}{key} = {literal}"]) + "\n"


def _example(about: Schema) -> object:
    """Return an example value of a key."""
    if "examples" in about:
        return about["examples"][0]
    return {"number": 0.5, "integer": about.get("minimum", 1), "string": "…"}[about["type"]]


def _place_among_first(key: str) -> int:
    return FIRST.index(key) if key in FIRST else len(FIRST)


def _names(variants: list[Schema]) -> str:
    return ", ".join(name for tag in map(tags_of, variants) if tag for name in tag[1])

"""The base class of all tables of a configuration, and the JSON schema generated from the tables.

The schema is written to `SCHEMA_FILE` for editors. Error messages, ``config init`` and the
documentation also use the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema

from model_store.bundles.directory import GALLERY_NAME

RULE = "rule"
"""Key in the JSON schema of a field. The value describes a default that depends on other keys."""

Contradiction = tuple[str, str]
"""A key, such as ``epochs`` or ``training.epochs``, and the reason why the key's value is
refused."""


class Contradictions(ValueError):
    """Values that contradict each other.

    Attributes
    ----------
    found : keys with contradictory values, each with the reason.
    """

    def __init__(self, found: Iterable[Contradiction]) -> None:
        self.found = tuple(found)
        super().__init__(" ".join(f"{key}: {why}" for key, why in self.found))


class Section(BaseModel):
    """An immutable table of the file. Unknown keys are errors, so misspelt keys are found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys of this table with contradictory values."""
        yield from ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        found = list(self.contradictions())
        if found:
            raise Contradictions(found)
        return self


def derived(default: Any, rule: str, **constraints: Any) -> Any:  # noqa: ANN401 - a field's
    """Return a field with a default that depends on other keys; see `configuration.defaults`.

    Parameters
    ----------
    default : default value if no other key determines it; ``...`` if another key always determines
        the value.
    rule : text that describes the default.
    constraints : arguments of pydantic's ``Field``.
    """
    return Field(default, json_schema_extra={RULE: rule}, **constraints)


def as_text(value: object) -> object:
    """Return a path as text, and any other value unchanged."""
    return str(value) if isinstance(value, Path) else value


def absolute(path: str | Path, info: ValidationInfo) -> str:
    """Return an absolute path.

    Parameters
    ----------
    info : validation info; its context has the ``folder`` of the configuration file. Paths in a
        file are relative to this folder, other paths to the working directory.
    """
    return str((folder_of(info) / Path(path).expanduser()).absolute())


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder that relative paths start from."""
    folder: Path | None = (info.context or {}).get("folder")
    return folder or Path()


def _absolute_path(path: Path, info: ValidationInfo) -> Path:
    return Path(absolute(path, info))


FilePath = Annotated[Path, AfterValidator(_absolute_path)]
"""A path that is converted to an absolute path."""


Schema = Mapping[str, Any]

SCHEMA_FILE = Path(__file__).with_name("build.schema.json")
"""The published schema of a configuration file."""

_PATTERNS = {
    GALLERY_NAME: "up to 64 lower-case letters, digits, `.`, `_` and `-`, the first a letter or "
    "digit"
}

_DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest dialect that Taplo supports; editors use Taplo to check TOML."""


class _Untitled(GenerateJsonSchema):
    """Generates a schema without titles, which would repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401, ARG002 - pydantic's
        return False


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Return the schema of a model's tables.

    The schema has no references. The schema has no nulls, because TOML has no null. If a default
    depends on other keys, the key is not required, and `RULE` describes the default in words.
    """
    schema = model.model_json_schema(schema_generator=_Untitled)
    found: Schema = _plain(schema, schema.get("$defs", {}))
    return found


def published_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema as a file for editors."""
    return {"$schema": _DIALECT, "title": "A build of Vouch", **_without_rules(schema_of(model))}


def keys_of(schema: Schema, table: str = "") -> Iterator[tuple[str, str, Schema, Schema]]:
    """Yield (table name, key, schema of the key, schema of the table) for each key of a schema.

    If a table has alternatives, as [posterior] has, the keys of each alternative are yielded.
    """
    for variant in variants_of(schema):
        for name, node in variant.get("properties", {}).items():
            if not is_table(node) and not is_array_of_tables(node):
                yield table, name, node, variant
    for name, node in schema.get("properties", {}).items():
        inside = f"{table}.{name}".lstrip(".")
        if is_table(node):
            yield from keys_of(node, inside)
        elif is_array_of_tables(node):
            yield from keys_of(node["items"], inside)


def variants_of(schema: Schema) -> list[Schema]:
    """Return the alternatives of a table; without alternatives, only the table."""
    several = [one for one in schema.get("oneOf", ()) if "properties" in one]
    return several or [schema]


def is_table(node: Schema) -> bool:
    """Return whether a key is a table."""
    return any("properties" in one for one in variants_of(node))


def is_array_of_tables(node: Schema) -> bool:
    """Return whether a key is a list of tables, which a file writes as ``[[key]]``."""
    return node.get("type") == "array" and is_table(node["items"])


def tags_of(variant: Schema) -> tuple[str, list[str]] | None:
    """Return the key that selects an alternative table, and the values of this key."""
    for key in ("kind", "method"):
        node = variant.get("properties", {}).get(key, {})
        if "const" in node:
            return key, [node["const"]]
        if "enum" in node:
            return key, list(node["enum"])
    return None


def fits(value: object, node: Schema) -> bool:
    """Return whether a value has a type that the key accepts."""
    kind = node.get("type")
    if "anyOf" in node:
        return any(fits(value, one) for one in node["anyOf"])
    if is_table(node):
        return isinstance(value, Mapping)
    if kind == "array":
        return isinstance(value, list) and all(fits(one, node["items"]) for one in value)
    if isinstance(value, bool):
        return kind == "boolean"
    types = {"integer": int, "number": int | float, "boolean": bool}
    return isinstance(value, types.get(str(kind), str))


def choices_of(node: Schema) -> list[str]:
    """Return the texts that a key accepts, if it accepts only certain texts."""
    own = [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]
    return own + [name for one in node.get("anyOf", ()) for name in choices_of(one)]


def accepted(node: Schema) -> str:
    """Return the accepted values of a key, in words."""
    if is_table(node) or is_array_of_tables(node):
        return "a table" if is_table(node) else "a list of tables"
    choices = [json.dumps(name, ensure_ascii=False) for name in choices_of(node)]
    others = [accepted(one) for one in node.get("anyOf", ()) if not choices_of(one)]
    if others:
        return listed([*others, *choices])
    if len(choices) > 1:
        return f"one of {listed(choices)}"
    words = {
        "integer": f"a whole number {bounds_of(node)}",
        "number": f"a number {bounds_of(node)}",
        "boolean": "true or false",
        "array": 'a list of texts in quotes, such as ["a", "b"]',
        "string": _PATTERNS.get(node.get("pattern", ""), "text in quotes"),
    }
    return choices[0] if choices else words[node["type"]].strip()


def bounds_of(node: Schema) -> str:
    """Return the bounds of a number in words; empty without bounds."""
    words = {
        "exclusiveMinimum": "above",
        "minimum": "of at least",
        "exclusiveMaximum": "below",
        "maximum": "at most",
        "multipleOf": "a multiple of",
    }
    bounds = [f"{word} {node[key]:g}" for key, word in words.items() if key in node]
    return listed(bounds, "and") if bounds else ""


def listed(names: Sequence[str], word: str = "or") -> str:
    """Return names as a list within a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _plain(node: Any, definitions: Schema) -> Any:  # noqa: ANN401 - JSON
    """Return a schema without references and nulls."""
    if isinstance(node, list):
        return [_plain(one, definitions) for one in node]
    if not isinstance(node, Mapping):
        return node
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        own = {key: value for key, value in node.items() if key not in {"$ref", "default"}}
        return {**_plain(definitions[name], definitions), **own}
    plain = {
        key: _plain(value, definitions)
        for key, value in node.items()
        if key not in {"$defs", "title", "discriminator", "format"}
    }
    if "oneOf" in plain:
        plain.pop("default", None)
    options = [one for one in plain.get("anyOf", ()) if one != {"type": "null"}]
    if len(options) == 1:
        plain = {**options[0], **{key: value for key, value in plain.items() if key != "anyOf"}}
    if plain.get("default", ...) in (None, []):
        del plain["default"]
    if RULE in plain:
        plain.pop("default", None)
    if "properties" in plain:
        wanted = [
            name for name in plain.get("required", ()) if RULE not in plain["properties"][name]
        ]
        plain.pop("required", None)
        plain |= {"required": wanted} if wanted else {}
    return plain


def _without_rules(node: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a schema in which descriptions contain the text of `RULE`."""
    if isinstance(node, list):
        return [_without_rules(one) for one in node]
    if not isinstance(node, Mapping):
        return node
    plain = {key: _without_rules(value) for key, value in node.items() if key != RULE}
    tags = [tag for tag in map(tags_of, variants_of(node)) if tag is not None]
    if "oneOf" in node and tags[0][0] == "kind":  # the name is enough
        names = [name for _, values in tags for name in values]
        plain["anyOf"] = [{"type": "string", "enum": names}, *plain.pop("oneOf")]
    if isinstance(node.get(RULE), str):
        plain["description"] = f"{node.get('description', '')} Default: {node[RULE]}.".strip()
    return plain

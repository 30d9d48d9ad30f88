"""Makes error messages for a configuration: key, value, accepted values and a suggestion."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from index_builder.configuration.schema import (
    RULE,
    Contradictions,
    Schema,
    accepted,
    choices_of,
    fits,
    is_array_of_tables,
    is_table,
    keys_of,
    listed,
    schema_of,
    tags_of,
    variants_of,
)

LONGEST_VALUE = 60
"""Maximum number of characters of a value in a message."""


_PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests a similar name; empty if no name is similar."""
    close = get_close_matches(name, list(known), 1)
    return f" Did you mean {close[0]}?" if close else ""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One error of a configuration.

    Attributes
    ----------
    place : the dotted key.
    received : the value in TOML notation; None if the key has no value.
    advice : accepted values, or how to fix the error.
    is_table : whether the key is a table.
    """

    place: str
    received: str | None
    advice: str
    is_table: bool = False


class Problems:
    """All errors of a configuration.

    Parameters
    ----------
    model : the model of the configuration.
    fields : the configuration.
    error : the validation error of pydantic; None if pydantic found no error.
    typed : whether to refuse values that pydantic would convert, such as the text "3" for a number.
    """

    def __init__(
        self,
        model: type[BaseModel],
        fields: Mapping[str, Any],
        error: ValidationError | None,
        *,
        typed: bool = False,
    ) -> None:
        self._schema = schema_of(model)
        self._fields = fields
        problems = [
            problem
            for one in (error.errors(include_url=False) if error is not None else ())
            for problem in self._described(one)
        ]
        if typed:
            problems += _mistyped(fields, self._schema)
        self.found = tuple({(one.place, one.advice): one for one in problems}.values())

    def of_file(self, source: str | Path, text: str) -> str:
        """Return a message with all errors of the file ``source``, sorted by line."""
        lines = lines_of(text)
        numbered = [(_line_of(problem.place, lines), problem) for problem in self.found]
        numbered.sort(key=lambda one: one[0] or 0)
        said = [
            f"{source}{f':{line}' if line else ''}: {_sentence(problem)}"
            for line, problem in numbered
        ]
        return _together(said, f"{source} has {len(said)} errors:")

    def of_options(self, options: Mapping[str, str]) -> str:
        """Return a message with all errors, for a command whose options set the keys.

        Parameters
        ----------
        options : the option of each key.
        """
        said = []
        for problem in self.found:
            option = options.get(problem.place)
            value = "" if problem.received is None else f" {problem.received}"
            said.append(
                _sentence(problem) if option is None else f"{option}{value}: {problem.advice}"
            )
        return _together(said, f"There are {len(said)} errors:")

    def _described(self, error: Any) -> Iterator[ConfigProblem]:  # noqa: ANN401 - pydantic's dictionary
        """Convert an error of pydantic to errors of the configuration."""
        place, node, table = _walked(self._schema, error["loc"])
        name, kind = ".".join(place), error["type"]
        received = None if name == "" else _written(self._value(place))
        reason = error.get("ctx", {}).get("error")
        if isinstance(reason, Contradictions):
            for key, why in reason.found:
                inside = [*place, *key.split(".")]
                yield ConfigProblem(".".join(inside), _written(self._value(inside)), why)
        elif kind == "value_error":
            yield ConfigProblem(name, received, str(reason))
        elif kind == "extra_forbidden":
            yield self._unknown(place, table)
        elif kind == "missing":
            yield ConfigProblem(name, None, _missing(node), is_table(node))
        elif kind in {"union_tag_invalid", "union_tag_not_found"}:
            yield self._of_several(place, node)
        else:
            yield ConfigProblem(name, received, _wanted(node, self._value(place)))

    def _unknown(self, place: Sequence[str], table: Schema) -> ConfigProblem:
        """Return the problem of an unknown key."""
        *before, key = place
        is_one = isinstance(self._value(place), Mapping)
        what = "unknown table." if is_one else "unknown key."
        known = list(table["properties"])
        close = get_close_matches(key, known, 1)
        inside = ".".join(before)
        elsewhere = [one for one in keys_of(self._schema) if one[1] == key]
        if close:
            wanted = f"[{'.'.join((*before, close[0]))}]" if is_one else f"`{close[0]}`"
            advice = f"Did you mean {wanted}?"
        elif tags := [tags_of(one[3]) for one in elsewhere if one[0] == inside]:
            names = [f'{tag[0]} = "{value}"' for tag in tags if tag for value in tag[1]]
            advice = f"It goes with {' or '.join(names)}."
        elif elsewhere:
            tables = dict.fromkeys(f"[{one[0]}]" if one[0] else "the top" for one in elsewhere)
            advice = f"It belongs to {' or '.join(tables)}."
        else:
            where = f"[{inside}]" if inside else "A file"
            advice = f"{where} has {', '.join(known)}."
        received = None if is_one else _written(self._value(place))
        return ConfigProblem(".".join(place), received, f"{what} {advice}", is_one)

    def _of_several(self, place: Sequence[str], node: Schema) -> ConfigProblem:
        """Return the error of a table whose ``kind`` or ``method`` is missing or unknown."""
        value = self._value(place)
        tags = [tag for tag in map(tags_of, variants_of(node)) if tag is not None]
        key, names = tags[0][0], [name for _, values in tags for name in values]
        wanted = listed([json.dumps(name) for name in names])
        if isinstance(value, Mapping):
            asked, name = value.get(key), ".".join((*place, key))
            if asked is None:
                return ConfigProblem(name, None, f"missing. Wanted one of {wanted}.")
        else:
            asked, name = value, ".".join(place)
            if key == "method":
                return ConfigProblem(name, _written(asked), f"wanted a table with `{key}`.")
        return ConfigProblem(
            name, _written(asked), f"wanted one of {wanted}.{_meant(asked, names)}"
        )

    def _value(self, place: Sequence[str]) -> object:
        """Return the value of the key ``place``; None if the key has no value."""
        value: object = self._fields
        for part in place:
            if isinstance(value, BaseModel):
                value = getattr(value, part, None)
            elif isinstance(value, Sequence) and part.isdigit():
                value = value[int(part) - 1]
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        return value


def _mistyped(
    fields: Mapping[str, Any], table: Schema, inside: str = ""
) -> Iterator[ConfigProblem]:
    """Yield the keys with values of a wrong type."""
    chosen, *others = variants_of(table)
    for one in others:
        key, names = tags_of(one) or ("", [])
        chosen = one if fields.get(key) in names else chosen
    for key, node in chosen["properties"].items():
        value, place = fields.get(key), f"{inside}.{key}".lstrip(".")
        if isinstance(value, Mapping) and is_table(node):
            yield from _mistyped(value, node, place)
        elif isinstance(value, list) and is_array_of_tables(node):
            for number, one in enumerate(value, start=1):
                if isinstance(one, Mapping):
                    yield from _mistyped(one, node["items"], f"{place}.{number}")
        elif value is not None and not is_table(node) and not fits(value, node):
            yield ConfigProblem(place, _written(value), _wanted(node, value))


def lines_of(text: str) -> dict[str, int]:
    """Return the line of each table and key of a TOML file, by its dotted name.

    Tables of a list are numbered from 1, for example ``samples.1``.
    """
    found: dict[str, int] = {}
    table, numbers = "", Counter[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$", line):
            table = _dotted(header[1])
            found.setdefault(table, number)
        elif header := re.match(r"\s*\[\[\s*([^\[\]]+?)\s*\]\]\s*(#.*)?$", line):
            numbers[_dotted(header[1])] += 1
            table = f"{_dotted(header[1])}.{numbers[_dotted(header[1])]}"
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault(f"{table}.{_dotted(key[1])}".lstrip("."), number)
    return found


def _dotted(name: str) -> str:
    return re.sub(r"""["'\s]""", "", name)


def _line_of(place: str, lines: Mapping[str, int]) -> int | None:
    """Return the line of a key, or of its table if the key is missing."""
    while place:
        if place in lines:
            return lines[place]
        place = place.rpartition(".")[0]
    return None


def _walked(schema: Schema, location: Sequence[int | str]) -> tuple[list[str], Schema, Schema]:
    """Return the key at a location of pydantic, its schema, and the schema of its table."""
    place: list[str] = []
    node = table = schema
    for part in location:
        variants = variants_of(node)
        if len(variants) > 1:
            chosen = [one for one in variants if part in (tags_of(one) or ("", []))[1]]
            if chosen:
                node = chosen[0]
                continue
        if is_array_of_tables(node) and isinstance(part, int):
            place.append(str(part + 1))
            node = node["items"]
            continue
        if not is_table(node) or not isinstance(part, str):
            break  # an index in a list, or a type
        place.append(part)
        table, node = node, node.get("properties", {}).get(part, {})
    return place, node, table


def _sentence(problem: ConfigProblem) -> str:
    place = f"[{problem.place}]" if problem.is_table else problem.place
    value = "" if problem.received is None else f" = {problem.received}"
    return f"{place}{value}: {problem.advice}".removeprefix(": ")


def _together(said: Sequence[str], title: str) -> str:
    return said[0] if len(said) == 1 else "\n  ".join((title, *said))


def _missing(node: Schema) -> str:
    if is_table(node):
        return f"missing. {node.get('description', '')}".strip()
    rule = f" Default: {node[RULE]}." if RULE in node else ""
    return f"missing. Wanted {accepted(node)}.{rule}"


def _wanted(node: Schema, value: object) -> str:
    """Return the accepted values of a key, and a suggestion."""
    return f"wanted {accepted(node)}.{_meant(value, choices_of(node))}"


def _meant(value: object, names: Sequence[str]) -> str:
    close = get_close_matches(value, names, 1) if isinstance(value, str) else []
    return f" Did you mean {json.dumps(close[0])}?" if close else ""


def _written(value: object) -> str | None:
    """Return a value in TOML notation, shortened; None for a table or no value."""
    if value is None or isinstance(value, Mapping | BaseModel):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = str(value)
    text = re.sub(r"//[^/@\s]*@", "//…@", text)  # a message repeats no password
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"

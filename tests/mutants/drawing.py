"""Mutants: what may be changed in a room, and which of it a seed draws."""

from __future__ import annotations

import ast
import random
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.mutants.kinds import (
    Closed,
    Edit,
    Required,
    closed_choices,
    python_edits,
    required_arguments,
    script_edits,
)
from tests.mutants.rooms import ROOMS, ROOT, files

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
PACKAGES = ("model_store", "service", "index_builder")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault, and what came of it.

    Attributes
    ----------
    line : of the original file, from 1.
    before, after : the lines that differ, without indentation.
    statement : the line on which its statement begins.
    seed : that drew it.
    outcome : ``killed``, ``survived`` or ``equivalent``; empty until it is known.
    by : the test that failed or took too long, or the reason why it is equivalent.
    """

    room: str
    kind: str
    path: str
    line: int
    before: str
    after: str
    statement: int
    source: str
    seed: int = 0
    outcome: str = ""
    by: str = ""

    def __str__(self) -> str:
        lines = [f"  - {line}" for line in self.before.splitlines()]
        lines += [f"  + {line}" for line in self.after.splitlines()]
        found = f"{self.outcome} {self.path}:{self.line} ({self.kind}) {self.by}"
        return "\n".join([found, *lines])


Candidate = tuple[str, Edit]
"""A path and what may be changed there."""


@cache
def known_names() -> tuple[Required, Closed]:
    """Return what no call can lack and what no stranger chooses, in all packages."""
    python = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    return required_arguments(python), closed_choices(python)


def candidates(room: str) -> dict[str, list[Candidate]]:
    """Return all that may be changed in a room, by kind."""
    required, closed = known_names()
    found: defaultdict[str, list[Candidate]] = defaultdict(list)
    for path in files(ROOT, ROOMS[room].sources):
        source = (ROOT / path).read_bytes()
        edits = (
            script_edits(source) if path.endswith(".js") else python_edits(source, required, closed)
        )
        for edit in edits:
            found[edit.kind].append((path, edit))
    return found


def mutant_of(room: str, path: str, edit: Edit) -> Mutant | None:
    """Return the mutant that an edit makes; None if it cannot be compiled or changes nothing."""
    old = (ROOT / path).read_bytes()
    new = old[: edit.begin] + edit.code.encode() + old[edit.end :]
    try:
        if path.endswith(".py"):
            if ast.dump(ast.parse(new)) == ast.dump(ast.parse(old)):
                return None
            with warnings.catch_warnings(action="error"):
                compile(new, path, "exec", dont_inherit=True)
    except SyntaxError:  # an `elif`, for example, that cannot be missing, or ``1[:]``
        return None
    line, before, after = difference(old.decode(), new.decode())
    return Mutant(room, edit.kind, path, line, before, after, edit.statement, new.decode())


def difference(old: str, new: str) -> tuple[int, str, str]:
    """Return the first line that differs, and the lines that do, of both."""
    a, b = old.splitlines(), new.splitlines()
    same = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    begin = sum(1 for _ in same)
    rest = zip(reversed(a[begin:]), reversed(b[begin:]), strict=False)
    after = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
    lines = [map(str.strip, one[begin : len(one) - after]) for one in (a, b)]
    return begin + 1, "\n".join(lines[0]), "\n".join(lines[1])


def draw(rooms: Sequence[str], number: int, seed: int, kinds: Sequence[str] = ()) -> list[Mutant]:
    """Draw mutants: from each room in turn, of a kind, of a place; all if there are fewer."""
    generator = random.Random(seed)
    left = {room: candidates(room) for room in rooms}
    drawn: list[Mutant] = []
    while len(drawn) < number and left:
        room = list(left)[len(drawn) % len(left)]
        full = (kind for kind, there in left[room].items() if there)
        choices = sorted(kind for kind in full if kind in kinds or not kinds)
        if not choices:
            del left[room]
            continue
        there = left[room][generator.choice(choices)]
        mutant = mutant_of(room, *there.pop(generator.randrange(len(there))))
        if mutant is not None:
            drawn.append(replace(mutant, seed=seed))
    return sorted(drawn, key=lambda one: list(ROOMS).index(one.room))


Key = tuple[str, str, str]
"""A path, the lines before and the lines after."""


def key_of(entry: Mapping[str, Any]) -> Key:
    """Return what a mutant is known by, wherever its line has gone."""
    return entry["path"], entry["before"], entry["after"]


def found_again(entries: Iterable[Mapping[str, Any]]) -> list[Mutant]:
    """Return earlier mutants, made of the code as it is now, but those whose lines have gone."""
    wanted = {key_of(entry): entry for entry in entries}
    kinds = {(entry["room"], entry["kind"], entry["path"]) for entry in wanted.values()}
    found: dict[Key, Mutant] = {}
    for room in dict.fromkeys(room for room, _, _ in kinds):
        for kind, there in candidates(room).items():
            for path, edit in there:
                mutant = mutant_of(room, path, edit) if (room, kind, path) in kinds else None
                if mutant is not None and (entry := wanted.get(key_of(asdict(mutant)))):
                    found.setdefault(key_of(entry), replace(mutant, seed=entry["seed"]))
    return list(found.values())


def equivalents() -> dict[Key, str]:
    """Return why mutants are equivalent."""
    entries = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"]
    return {key_of(entry): entry["reason"] for entry in entries}

"""Results of an attack, and the place where one happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """A place for an attack.

    Attributes
    ----------
    bundle : is only read.
    folder : empty, and its own.
    """

    bundle: Path
    folder: Path


@dataclass(slots=True)
class Outcome:
    """The result of an attack.

    Attributes
    ----------
    n : attempts.
    violations : of what was promised, in words.
    figures : more numbers, for the report.
    """

    n: int = 0
    violations: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

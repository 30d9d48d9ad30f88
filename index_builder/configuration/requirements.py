"""Requirements on the outcome of a build, for example ``recall_at_1>=0.8,match_share>=0.3``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from index_builder.configuration.problems import did_you_mean
from model_store.errors import UsageError
from model_store.verdicts import OUTCOME_NUMBERS

if TYPE_CHECKING:
    from model_store.records import GalleryOutcome

Check = Callable[["GalleryOutcome"], object]
"""Function that gets the outcome of a build before the bundle is published. The function raises an
error to prevent the publication."""

_COMPARISON = re.compile(r"\s*([a-z_0-9]+)\s*(>=|<=)\s*(\S+)\s*")
_COUNTS = frozenset({"n_queries"})
"""Numbers of an outcome that are counts. All other numbers are shares."""


def accept_any(_: GalleryOutcome) -> None:
    """Accept every outcome."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A minimum or maximum for one number of an outcome.

    Attributes
    ----------
    name : one of `OUTCOME_NUMBERS`.
    operator : ``>=`` or ``<=``.
    limit : a share between 0 and 1, or a count.
    """

    name: str
    operator: str
    limit: float

    def shortfall(self, outcome: GalleryOutcome) -> str | None:
        """Return how an outcome fails the requirement; None if the requirement is met.

        If the number is unknown, the requirement is not met.
        """
        value = getattr(outcome, self.name)
        wanted = f"(wanted {self.operator} {self.limit:g})"
        if value is None:
            return f"{self.name} is not known {wanted}"
        met = value >= self.limit if self.operator == ">=" else value <= self.limit
        return None if met else f"{self.name} is {value:.4g} {wanted}"


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """Read requirements, separated by commas.

    Raises
    ------
    UsageError : a requirement is not a comparison, its name is unknown, or its limit is out of
        range.
    """
    return tuple(_parsed(one) for one in text.split(","))


def _parsed(text: str) -> Requirement:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--require {text.strip()!r} is not a comparison. Write NAME>=NUMBER or NAME<=NUMBER, "
            "for example recall_at_1>=0.8."
        )
    name, operator, number = found.groups()
    if name not in OUTCOME_NUMBERS:
        hint = did_you_mean(name, OUTCOME_NUMBERS)
        raise UsageError(
            f"--require {name!r} is not a number of the outcome.{hint} Accepted: "
            f"{', '.join(OUTCOME_NUMBERS)}."
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    most = math.inf if name in _COUNTS else 1.0
    if not 0 <= limit <= most:
        wanted = "a number of at least 0" if name in _COUNTS else "a share between 0 and 1"
        raise UsageError(f"--require {name}{operator}{number}: wanted {wanted}, for example 0.8.")
    return Requirement(name, operator, limit)

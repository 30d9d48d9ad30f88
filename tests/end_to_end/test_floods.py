"""One caller takes all it can get, in four ways; another one is answered all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture import flooded
from tests.torture.floods import FLOODS
from tests.torture.outcome import Outcome, Place

SECONDS = 9.0
"""One for each flood, and as many before, between and behind them."""


@pytest.fixture(scope="module")
def outcome(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a good caller got beside all floods, one after the other."""
    return flooded.attack(Place(digits_bundle, tmp_path_factory.mktemp("floods")), SECONDS, 0)


@pytest.mark.parametrize("flood", FLOODS)
def test_the_other_caller_is_answered(
    outcome: Outcome, flood: str, record_property: Callable[[str, object], None]
) -> None:
    found = outcome.figures[flood]
    record_property("found", found)
    assert found["flood"] >= FLOODS[flood][1]
    assert found["asked"] >= flooded.FEWEST_ASKED
    assert found["answered"] >= flooded.FEWEST_ANSWERED, found

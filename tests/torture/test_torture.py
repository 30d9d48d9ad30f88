"""A short run of every attacker; `make torture` runs them for a quarter of an hour."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Error

from tests.end_to_end.browsers import installed
from tests.end_to_end.fronts import PROGRAMS
from tests.torture import health, memory, rebinding
from tests.torture.attackers import ATTACKERS
from tests.torture.outcome import Outcome, Place

pytestmark = pytest.mark.process

ELSEWHERE = {
    "histories": "end_to_end/test_replicas.py",
    "killed while written to": "end_to_end/test_crash_writes.py",
    "planted decoder": "service/test_sandbox.py",
    "floods of one caller": "end_to_end/test_floods.py",
}
"""Attackers of which other tests are a short run."""

KINDS = ("tiny chunks", "punycode")
CROWDS = ("heads held", "pipelines at once", "bodies held")
MOST_OF_FEW_PROBES_S = 1.0
"""It was 4 s where all requests that came at once were begun at once."""


@pytest.fixture
def place(digits_bundle: Path, tmp_path: Path) -> Place:
    return Place(digits_bundle, tmp_path)


HIT = {
    "lying Redis": "damaged replies",
    "nonsense for Redis": "kinds",
    "damaged logs": "refused",
    "damaged bundles": "refused",
    "malicious archives": "refused",
    "forged bundles": "refused",
    "forged sources": "refused",
    "forged settings": "refused",
}
"""The figure that says that an attack was one."""


@pytest.mark.parametrize("name", HIT)
def test_nothing_that_is_promised_is_violated(place: Place, name: str) -> None:
    outcome = ATTACKERS[name].attack(place, 3, 0)
    assert outcome.violations == []
    assert outcome.n > 1
    assert outcome.figures[HIT[name]] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="it takes /proc and a second loopback address")
def test_health_is_answered_under_the_worst_requests(place: Place) -> None:
    check_health(health.attack(place, 0, 0, KINDS), KINDS)


@pytest.mark.skipif(sys.platform != "linux", reason="it takes /proc and a second loopback address")
@pytest.mark.skipif(PROGRAMS["haproxy"] is None, reason="there is no haproxy here")
def test_health_is_answered_behind_the_shipped_proxy_in_a_crowd(place: Place) -> None:
    check_health(health.attack(place, 0, 0, CROWDS, "shipped HAProxy"), CROWDS)


def check_health(outcome: Outcome, kinds: Sequence[str]) -> None:
    assert set(outcome.figures) == set(kinds)
    for kind, found in outcome.figures.items():
        assert found["requests"] > 0, kind
        assert found["unanswered"] == 0, kind
        assert not health.is_late(found, MOST_OF_FEW_PROBES_S), kind


@pytest.mark.skipif(sys.platform != "linux", reason="it takes /proc and other loopback addresses")
def test_memory_stays_bounded_while_connections_are_held(place: Place) -> None:
    # Peaks differ between runs. If nothing bounds the memory, each attempt exceeds the bound.
    for _ in range(3):
        documents = memory.attack(place, 0, 0, ["documents"]).figures["documents"]
        assert documents["held_at_once"] > 500
        if documents["of_allowed"] < 1:
            break
    assert documents["of_allowed"] < 1


class TestAPageOfAnotherHost:
    pytestmark = pytest.mark.browser

    @pytest.fixture(autouse=True)
    def _browser(self) -> None:
        if installed() is None:
            pytest.skip("no browser is installed here")

    def test_gets_nothing(self, place: Place) -> None:
        try:
            outcome = rebinding.attack(place, 0, 0)
        except Error as error:
            pytest.skip(f"no browser starts here: {error.message.splitlines()[0]}")
        assert outcome.violations == []
        assert outcome.n >= len(rebinding.NAMES) * len(rebinding.REQUESTS)

    def test_would_get_much_if_it_were_let(self, place: Place) -> None:
        """The attack is such that succeeds where any name is taken."""
        asked = rebinding.asked_by_a_page(place, 0, {"VOUCH_ALLOWED_HOSTS": '["*"]'})
        assert [status for _, asked, status in asked if "items" in asked and "GET" in asked] == [
            200
        ] * len(rebinding.NAMES)


def test_every_attacker_has_a_short_run() -> None:
    here = {"slow and endless", "crowds before the proxy", "held connections", "rebinding"}
    assert set(ATTACKERS) == {*HIT, *here, *ELSEWHERE}
    tests = Path(__file__).parents[1]
    assert all((tests / file).is_file() for file in ELSEWHERE.values())

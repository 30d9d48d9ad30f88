"""Rules of access at their boundaries: what just passes, and its neighbours that do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Scope

from model_store.errors import MisdirectedRequest
from service.access.access import Caller, KeyLimits
from service.access.hosts import AllowedHosts, _without, is_loopback
from service.access.keys import SCOPES, KeyScope, allows, mint, rotated
from service.access.rate_limits import MAX_COUNT, Rates, Standing, Tallies, Tally
from service.settings import parse_rate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
MATCHES = {
    "shoes": (["shoes"], ["shoe", "shoes2", "xshoes", "shoes-", "Shoes", ""]),
    "acme-*": (["acme-", "acme-1", "acme-a-b"], ["acme", "acme1", "xacme-1", "acm-e"]),
    "*": (["a", "shoes"], []),
    "*-test": (["-test", "a-test"], ["test", "a-tests", "a-test-"]),
    "a.b": (["a.b"], ["axb", "a.bc"]),
}


@pytest.mark.parametrize("pattern", MATCHES)
def test_key_sees_galleries_of_its_pattern_alone(pattern: str) -> None:
    seen, unseen = MATCHES[pattern]
    limits = KeyLimits(galleries=(pattern,))
    assert [name for name in (*seen, *unseen) if limits.sees(name)] == seen
    assert KeyLimits().sees("anything")
    assert not KeyLimits(galleries=()).sees("anything")


def test_key_of_two_patterns_sees_galleries_of_either() -> None:
    limits = KeyLimits(galleries=("shoes", "acme-*"))
    assert [one for one in ("shoes", "acme-1", "shoes-1", "acme") if limits.sees(one)] == [
        "shoes",
        "acme-1",
    ]


def test_scope_allows_itself_and_those_below() -> None:
    order: tuple[KeyScope, ...] = ("read", "review", "write", "admin")
    assert order == SCOPES
    for held_place, held in enumerate(order):
        for wanted_place, wanted in enumerate(order):
            assert allows(held, wanted) is (wanted_place <= held_place)


def request_of(host: str | None, path: str = "/") -> Scope:
    headers = [] if host is None else [(b"host", host.encode())]
    return {"type": "http", "http_version": "1.0", "path": path, "headers": headers}


def goes_by(names: list[str], host: str) -> bool:
    try:
        AllowedHosts(names).check(request_of(host))
    except MisdirectedRequest:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *((host, True) for host in ("search.example", "b.own.example", "a.b.own.example")),
        *((host, True) for host in ("localhost", "a.localhost", "127.0.0.1", "127.255.255.255")),
        *((host, False) for host in ("evilsearch.example", "x.search.example", "search.exampl")),
        *((host, False) for host in ("search.example.evil", "earch.example", "example", "search")),
        *((host, False) for host in ("own.example", "bown.example", "b.own.example.evil")),
        *((host, False) for host in ("xlocalhost", "localhost.evil", "126.255.255.255")),
        ("128.0.0.0", False),
    ],
)
def test_service_goes_by_its_whole_names(host: str, own: bool) -> None:
    assert goes_by(["Search.example.", "*.own.example"], host) is own


def test_request_without_a_name_is_taken() -> None:
    AllowedHosts(["search.example"]).check(request_of(None))


def test_metrics_are_sent_to_a_request_without_a_host() -> None:
    AllowedHosts(["search.example"]).check(request_of(None, "/metrics"))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((one, True) for one in ("127.0.0.0", "::1", "[::1]", "::ffff:127.0.0.1", "LOCALHOST.")),
        *((one, False) for one in ("::", "::2", "::ffff:128.0.0.0", "::ffff:126.255.255.255")),
        *((one, False) for one in ("", "1.0.0.127", "127.0.0.1.example", "localhosts", "127.1")),
    ],
)
def test_loopback_ends_at_its_network(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_key_is_good_until_the_moment_it_expires() -> None:
    key, _ = mint("k", "read", expires_at=NOW)
    assert key.state(NOW - MOMENT) == "active"
    assert key.state(NOW) == "expired"
    assert key.state(NOW + MOMENT) == "expired"
    assert key.model_copy(update={"revoked_at": NOW}).state(NOW - MOMENT) == "revoked"


@pytest.mark.parametrize(("life_h", "grace_h", "left_h"), [(2, 1, 1), (1, 2, 1), (None, 3, 3)])
def test_rotated_key_ends_with_its_grace_or_its_life(
    life_h: int | None, grace_h: int, left_h: int
) -> None:
    now = datetime.now(UTC)
    ends = None if life_h is None else now + timedelta(hours=life_h)
    key, _ = mint("k", "read", expires_at=ends)
    old, _, _ = rotated(key, timedelta(hours=grace_h))
    assert old.expires_at is not None
    left = old.expires_at - now
    assert abs(left - timedelta(hours=left_h)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("count", "exceeded", "remaining"), [(2, False, "1"), (3, False, "0"), (4, True, "0")]
)
def test_request_of_just_the_limit_is_allowed(count: int, exceeded: bool, remaining: str) -> None:
    standing = Standing(3, count, 9.5)
    headers = standing.headers()
    assert standing.exceeded is exceeded
    assert headers["RateLimit-Remaining"] == remaining
    assert headers["RateLimit-Reset"] == "10"
    assert ("Retry-After" in headers) is exceeded


@pytest.mark.parametrize(("reset_s", "told"), [(0.0, "1"), (1.0, "1"), (1.1, "2"), (2.0, "2")])
def test_time_to_wait_is_rounded_up_and_one_second_at_least(reset_s: float, told: str) -> None:
    assert Standing(1, 2, reset_s).headers()["Retry-After"] == told


def test_shared_count_that_went_back_is_made_up_for() -> None:
    """A caller's count never falls, and is not raised where nothing was lost."""
    tally = Tally(0)
    assert [tally.settle(tally.seen, shared) for shared in (1, 2, 2, 3, 7)] == [1, 2, 3, 4, 8]
    other = Tally(0)
    assert [other.settle(other.seen, None) for _ in range(2)] == [1, 2]
    assert other.settle(other.seen, 1) == 3
    assert other.settle(other.seen, 1, n=0) == 3


def test_answer_of_redis_that_comes_late_does_not_lower_a_count() -> None:
    """Two requests are counted in Redis in one order, and answered in the other."""
    tally = Tally(0)
    assert tally.settle(0, 2) == 2
    assert tally.settle(0, 1) == 1
    assert tally.seen == 2
    assert tally.settle(tally.seen, None) == 3


@pytest.mark.parametrize(
    ("path", "within"),
    [
        ("/vouch", "/"),
        ("/vouch/", "/"),
        ("/vouch/v1/items", "/v1/items"),
        ("/vouchers", "/vouchers"),
        ("/shop/vouch", "/shop/vouch"),
        ("/Vouch/v1", "/Vouch/v1"),
        ("/", "/"),
    ],
)
def test_prefix_is_removed_where_it_begins_the_path(path: str, within: str) -> None:
    assert _without("/vouch", path) == within
    assert _without("", path) == path


def test_tallies_are_kept_for_so_many_callers_and_no_more() -> None:
    tallies, rate = Tallies(max_callers=2), parse_rate("3/day")
    first = tallies.of("a", rate, 0)
    first.seen = 2
    tallies.of("b", rate, 0)
    assert tallies.of("a", rate, 0) is first
    tallies.of("c", rate, 0)  # "b" was idle longest
    assert tallies.of("a", rate, 0) is first
    assert tallies.of("a", rate, 1).seen == 0


@pytest.mark.anyio
async def test_counts_of_one_caller_and_period_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, rate, now = Rates(None, 1.0), parse_rate("3/minute"), 600.0
    monkeypatch.setattr("service.access.rate_limits.time.time", lambda: now)
    counts = [(await rates.count("a", rate, n)).count for n in (1, 2, 0, 1)]
    assert counts == [1, 3, 3, 4]
    assert (await rates.count("aa", rate)).count == 1
    now = 659.9
    assert (await rates.count("a", rate)).exceeded
    now = 660.0
    assert (await rates.count("a", rate)).count == 1


@pytest.mark.anyio
@pytest.mark.parametrize("n", [0, 1, 2])
async def test_count_in_redis_is_a_possible_number_or_unknown(n: int) -> None:
    rates: Any = Rates(None, 1.0)
    rates._pool = rates._shared = object()
    possible = [n, n + 1, MAX_COUNT - 1]
    for count in (*possible, n - 1, MAX_COUNT, True, float(n), str(n), None):

        async def ask(*_: object, count: object = count) -> object:
            return count

        rates.calls = SimpleNamespace(ask=ask)
        is_known = type(count) is int and count in possible
        found = await rates._increment_shared("key", 60, n)
        assert found == (count if is_known else None), count


@pytest.mark.parametrize(
    ("address", "stream"),
    [
        ("2001:db8:0:1::", "address 2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "address 2001:db8:0:1::/64"),
        ("2001:db8:0:2::", "address 2001:db8:0:2::/64"),
        ("192.0.2.1", "address 192.0.2.1"),
        ("192.0.2.2", "address 192.0.2.2"),
        ("unix", "address unix"),
    ],
)
def test_stream_of_queries_is_of_an_address_or_a_subscriber(address: str, stream: str) -> None:
    caller = Caller(address, f"address {address}", None, "read", None)
    assert caller.stream == stream
    if address != "unix":
        assert str(ip_address(address)) in {address, caller.id}

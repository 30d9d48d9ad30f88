"""How many galleries are held open where few files may be."""

from __future__ import annotations

import resource

import pytest

from service.workers import FEWEST, galleries_at_once, raise_file_limit


@pytest.mark.parametrize(
    ("files", "connections", "wanted", "at_once"),
    [
        (resource.RLIM_INFINITY, 1000, 5000, 5000),
        (2**20, 1000, 1000, 1000),
        (20_000, 1000, 5000, 1171),
        (1024, 1000, 1000, FEWEST),
        (1024, 1000, 3, 3),
    ],
)
def test_galleries_take_what_connections_leave(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int, wanted: int, at_once: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert galleries_at_once(wanted, connections) == at_once


def test_as_many_files_as_may_be_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 9000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    raise_file_limit()
    assert limits == [(9000, 9000)]

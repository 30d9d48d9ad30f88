"""Pages and cursors of a replica that is ahead: what others have written is read first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.serving.lease import Lease
from service.serving.queries import page_of


class Live:
    """A live gallery in whose log another process has written one row more."""

    def __init__(self) -> None:
        self.is_read = False

    def refresh(self) -> Any:
        self.is_read = True
        return self.snapshot()

    def snapshot(self, version: int | None = None) -> Any:
        if version is not None and not self.is_read:
            raise LookupError("of a version that nobody here has read")
        n_rows = 6 if self.is_read else 5
        return SimpleNamespace(
            n_rows=n_rows,
            page=lambda after, limit: np.arange(n_rows)[after + 1 :][:limit],
            items=lambda rows: [f"item {row}" for row in rows],
        )


def test_a_page_after_a_row_that_is_not_read_yet() -> None:
    live = Live()
    bundle: Any = SimpleNamespace(retriever=SimpleNamespace(gallery=live.snapshot()), live=live)
    assert page_of(bundle, 5, 10).items == []
    assert live.is_read
    assert page_of(bundle, 4, 10).items == []  # as the request has found it


def test_a_cursor_of_a_version_that_is_not_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live()
    monkeypatch.setattr("service.serving.lease.replace", lambda _of, **changed: changed)
    lease: Any = SimpleNamespace(
        engine=SimpleNamespace(bundle=SimpleNamespace(live=live)),
        bundle=SimpleNamespace(version=1),
        _retriever=SimpleNamespace(with_gallery=lambda gallery: gallery.n_rows),
    )
    at: Any = Lease.at(lease, 2)
    assert at == {"bundle": {"retriever": 6}}

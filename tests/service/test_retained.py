"""Answered queries that are kept for a while, and forgotten on request."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.feedback import AnsweredQueries, AnsweredQuery
from service.serving.reviewing import RetainedQueries
from tests.support.waiting import TIMEOUT_S

pytestmark = pytest.mark.anyio

EMBEDDINGS = Embeddings(*(np.ones((1, 4), np.float32) for _ in range(3)))


class Slow(AnsweredQueries):
    """Writes when it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, retention_s=3600)
        self.begun, self.may_write = threading.Event(), threading.Event()

    def add(self, gallery: str, encoder: str, queries: Sequence[AnsweredQuery]) -> None:
        self.begun.set()
        assert self.may_write.wait(TIMEOUT_S)
        super().add(gallery, encoder, queries)


async def test_one_that_is_forgotten_while_it_is_written_is_gone(tmp_path: Path) -> None:
    kept = Slow(tmp_path / "feedback.sqlite")
    queries = RetainedQueries("digits", "encoder", kept)
    queries.note("query", EMBEDDINGS, 7)
    keeping = asyncio.create_task(queries.keep())
    assert await asyncio.to_thread(kept.begun.wait, 10)
    forgetting = asyncio.create_task(queries.forget("query"))
    await asyncio.sleep(0.05)
    kept.may_write.set()
    await asyncio.gather(keeping, forgetting)
    assert await queries.find("query") is None
    queries.note("query", EMBEDDINGS, 7)
    await queries.keep()
    assert await queries.find("query") is not None


async def test_one_that_another_process_has_answered_and_writes_later_is_gone_too(
    tmp_path: Path,
) -> None:
    """Whichever process is told to forget it; once it is answered anew it is kept anew."""
    file = tmp_path / "feedback.sqlite"
    one, other = (
        RetainedQueries("digits", "encoder", AnsweredQueries(file, 3600)) for _ in range(2)
    )
    one.note("query", EMBEDDINGS, 7)
    one.note("another", EMBEDDINGS, 7)
    await other.forget("query")
    await one.keep()
    assert await other.find("query") is None
    assert await other.find("another") is not None
    one.note("query", EMBEDDINGS, 7)
    await one.keep()
    assert await other.find("query") is not None


async def test_version_is_kept_beside_what_release_0_2_writes(tmp_path: Path) -> None:
    """During an upgrade, replicas of both releases write to one file."""
    file = tmp_path / "feedback.sqlite"
    queries = RetainedQueries("digits", "encoder", AnsweredQueries(file, 3600))
    queries.note("query", EMBEDDINGS, 7)
    await queries.keep()
    with sqlite3.connect(file) as connection:
        connection.execute(
            "INSERT OR REPLACE INTO answered "
            "SELECT gallery, encoder, 'other', answered_at, mean, variance, features FROM answered"
        )
    versions = [
        found and found[1] for found in [await queries.find("query"), await queries.find("other")]
    ]
    assert versions == [7, None]
    await queries.forget("query")
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT * FROM answered_versions").fetchall() == []

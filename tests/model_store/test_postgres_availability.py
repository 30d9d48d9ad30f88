"""While PostgreSQL hangs or refuses the service, calls fail at once after the first timeout."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from model_store.errors import GalleryUnavailable
from model_store.gallery import remote
from model_store.gallery.milvus.databases import PostgresDatabase
from model_store.gallery.postgres import database
from model_store.gallery.postgres.database import PostgresAccess
from model_store.gallery.postgres.gallery import PostgresGallery
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.laws.writable_laws import DIM, N_ITEMS
from tests.support.killing import halted
from tests.support.postgres import Postgres, write_postgres_gallery
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

AT_ONCE_S = 0.1


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("CREATE ROLE vouch SUPERUSER LOGIN")
        yield server


@pytest.fixture
def gallery(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresGallery]:
    monkeypatch.setattr(remote, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(remote, "SLOW_S", 0.3)
    access = PostgresAccess(server.uri.replace("postgres:@", "vouch@"), timeout_s=0.5)
    embeddings, items = random_embeddings(N_ITEMS, DIM, seed=0), new_items(N_ITEMS)
    write_postgres_gallery(
        tmp_path, embeddings, items, "e", "postgresql://db.example/vouch", access=access
    )
    gallery = PostgresGallery(tmp_path, access)
    yield gallery
    gallery.close()


def seconds_of(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    with pytest.raises(GalleryUnavailable):
        call()
    return time.monotonic() - began


def require_back(call: Callable[[], Any]) -> None:
    def is_back() -> bool:
        with suppress(GalleryUnavailable):
            call()
            return True
        return False

    wait_until(is_back)


def test_a_server_that_hangs(server: Postgres, gallery: PostgresGallery) -> None:
    with halted(*server.processes()):
        assert seconds_of(gallery.renewed) < 20
        assert max(seconds_of(gallery.renewed) for _ in range(5)) < AT_ONCE_S
    require_back(gallery.renewed)


def test_a_server_that_refuses_the_service(
    server: Postgres, gallery: PostgresGallery, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("ALTER ROLE vouch NOLOGIN")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'vouch'"
        )
        time.sleep(remote.SLOW_S)
        seconds_of(gallery.renewed)
        assert max(seconds_of(gallery.renewed) for _ in range(5)) < AT_ONCE_S
        [warned] = [one for one in caplog.records if "does not answer" in one.message]
        assert "not permitted to log in" in str(vars(warned)["fields"])
        connection.execute("ALTER ROLE vouch LOGIN")
    require_back(gallery.renewed)


def test_a_slow_statement_leaves_others_alone(gallery: PostgresGallery) -> None:
    assert seconds_of(lambda: gallery.database.rows("SELECT pg_sleep(30)")) < 3
    assert gallery.renewed() is gallery


def test_many_slow_statements_leave_others_alone(
    gallery: PostgresGallery, caplog: pytest.LogCaptureFixture
) -> None:
    """While all connections are in use, a call waits in vain."""
    threads = [
        threading.Thread(target=lambda: gallery.database.rows("SELECT pg_sleep(0.9)"))
        for _ in range(database.MOST_CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    with pytest.raises(GalleryUnavailable):
        gallery.renewed()
    for thread in threads:
        thread.join()
    assert gallery.renewed() is gallery
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_log_of_changes_on_a_server_that_hangs(server: Postgres) -> None:
    log = PostgresDatabase(server.uri, "a collection", (), 0.5)
    assert log.ask("SELECT 1") == [(1,)]
    with halted(*server.processes()):
        assert seconds_of(lambda: log.ask("SELECT 1")) < 20
    require_back(lambda: log.ask("SELECT 1"))
    log.close()

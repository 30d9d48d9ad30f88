"""Workers of one service, as each sees the others."""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from pathlib import Path
from select import select
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.supervisors import multiprocess

from model_store.errors import BundleNotFound
from service import start
from service.http.server import STARTUP_FAILURE, _Workers
from service.settings import Settings
from service.workers import is_first_worker, is_worker, n_workers, shared_directory

NOBODY = 2**22 + 1
"""Larger than any id of a process."""


def test_workers_are_the_live_processes_that_count(tmp_path: Path) -> None:
    assert n_workers(None) == 1
    assert n_workers(tmp_path) == 0
    for pid in (os.getpid(), os.getppid(), NOBODY):
        (tmp_path / f"gauge_livesum_{pid}.db").touch()
        (tmp_path / f"counter_{pid}.db").touch()
    assert n_workers(tmp_path) == 2


def test_one_worker_is_the_first(tmp_path: Path) -> None:
    assert is_first_worker(tmp_path)
    assert not is_first_worker(tmp_path)


def test_process_alone_is_no_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert not is_worker()
    assert shared_directory() is None


@pytest.mark.parametrize(("others", "status"), [(False, STARTUP_FAILURE), (True, 1)])
def test_worker_that_cannot_serve_ends_the_service_unless_others_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: bool, status: int
) -> None:
    def fails(*_: object) -> None:
        raise BundleNotFound("No bundle there.")

    for name in ("log_as_json", "tune_malloc", "join_workers"):
        monkeypatch.setattr(start, name, lambda *_, **__: None)
    monkeypatch.setattr(start, "shared_directory", lambda: tmp_path)
    monkeypatch.setattr(start, "_open_app", fails)
    if others:
        (tmp_path / f"gauge_livesum_{os.getppid()}.db").touch()
    with pytest.raises(SystemExit) as ended:
        start._open_in_worker(Settings())
    assert ended.value.code == status


@pytest.mark.process
def test_end_of_a_worker_that_is_asked_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocess, "SIGNALS", {})  # those of pytest stay
    several = _Workers(
        uvicorn.Config("none:app", log_config=None, timeout_worker_healthcheck=30), []
    )
    worker = multiprocess.Process(several.config, [])
    # It ends with the first question, which it does not answer.
    waits = get_context("spawn").Process(target=select, args=([worker.child_conn], [], []))
    worker.process = waits
    waits.start()
    several.processes = [worker]
    started = Mock()
    monkeypatch.setattr(multiprocess, "Process", started)
    began = time.monotonic()
    several.keep_subprocess_alive()
    assert time.monotonic() - began < 20
    assert several.processes == [started.return_value]  # another one takes its place

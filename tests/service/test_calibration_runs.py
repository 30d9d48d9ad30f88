"""Calibrations that clients start: their states, and what refuses them."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_store.bundles.directory import CURRENT_FILE
from model_store.bundles.kept_queries import ITEM_FEATURES_FILE
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.errors import NotReady, WriteRefused
from model_store.files import lock_between_processes
from model_store.gallery import LiveGallery
from service.serving.builder import CalibrateCommand
from service.serving.calibration_runs import (
    INTERRUPTED,
    LOCK_FILE,
    RUN_FILE,
    CalibrationRuns,
    LastCalibration,
    n_item_queries,
)

pytestmark = pytest.mark.process

SAYS = "import pathlib, sys; pathlib.Path(sys.argv[-1], 'said').write_text(' '.join(sys.argv[1:]))"
FAILS = "import sys; sys.exit('fitting …\\nerror: There are too few.\\nAdd some.')"
"""The command prints its progress before the reason."""


@pytest.fixture
def lease(tmp_path: Path, live: Any) -> Any:
    (tmp_path / ITEM_FEATURES_FILE).touch()
    (tmp_path / CURRENT_FILE).write_text("b" * 16)
    bundle = SimpleNamespace(
        root=tmp_path,
        name="g",
        directory=tmp_path,
        live=live,
        retriever=SimpleNamespace(calibration=None),
    )
    return SimpleNamespace(bundle=bundle)


@pytest.fixture
def live() -> Any:
    return LiveGallery.__new__(LiveGallery)


class Served:
    """Galleries that note which one was asked for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self._error = error

    @asynccontextmanager
    async def lease(self, name: str) -> Any:
        self.asked.append(name)
        if self._error:
            raise self._error
        yield


def runs(code: str | None, served: Any = None, signing: Signing = UNSIGNED) -> CalibrationRuns:
    command = () if code is None else (sys.executable, "-c", code)
    galleries: Any = served or Served()
    return CalibrationRuns(galleries, CalibrateCommand(command, signing))


async def ended(some: CalibrationRuns, bundle: Any) -> LastCalibration:
    while some.last(bundle).state == "running":  # noqa: ASYNC110 - a file says so
        await asyncio.sleep(0.02)
    return some.last(bundle)


def test_run_that_succeeds_names_the_bundle_that_is_then_served(lease: Any) -> None:
    async def ran() -> None:
        served = Served()
        some = runs(SAYS, served)
        assert some.last(lease.bundle) == LastCalibration()
        begun = await some.begin(lease, {"max_error": 0.1, "alpha": 0.05})
        assert begun.state == "running"
        assert some.last(lease.bundle) == begun
        run = await ended(some, lease.bundle)
        assert (run.state, run.bundle_id, run.reason) == ("succeeded", "b" * 16, None)
        assert run.started_at == begun.started_at
        assert run.ended_at is not None
        assert served.asked == ["g"]

    asyncio.run(ran())
    said = (lease.bundle.root / "said").read_text()
    assert said == f"--max-error=0.1 --alpha=0.05 {lease.bundle.root}"


def test_run_that_fails_has_the_reason_of_the_command_alone(lease: Any) -> None:
    async def ran() -> LastCalibration:
        some = runs(FAILS)
        await some.begin(lease, {})
        return await ended(some, lease.bundle)

    run = asyncio.run(ran())
    assert (run.state, run.reason) == ("failed", "There are too few.\nAdd some.")
    assert run.bundle_id is None


def test_bundle_that_is_not_served_at_once_is_left_to_the_watch(lease: Any) -> None:
    async def ran() -> LastCalibration:
        some = runs("pass", Served(NotReady("later")))
        await some.begin(lease, {})
        return await ended(some, lease.bundle)

    assert asyncio.run(ran()).state == "succeeded"


def test_second_calibration_waits_for_the_end_of_the_first(lease: Any) -> None:
    async def ran() -> None:
        some = runs("import time; time.sleep(600)")
        await some.begin(lease, {})
        with pytest.raises(WriteRefused, match="being calibrated already"):
            await runs("pass").begin(lease, {})
        assert some.last(lease.bundle).state == "running"
        await some.close()
        # The service has ended, and its process with it.
        assert some.last(lease.bundle).reason == INTERRUPTED
        await runs("pass").begin(lease, {})

    asyncio.run(asyncio.wait_for(ran(), 60))


def test_run_of_another_worker_is_running_while_that_worker_holds_the_lock(lease: Any) -> None:
    root = lease.bundle.root
    run = LastCalibration("running", "2026-01-01T00:00:00+00:00")
    (root / RUN_FILE).write_text(json.dumps(asdict(run)))
    with lock_between_processes(root / LOCK_FILE):
        assert CalibrationRuns.last(lease.bundle) == run
    assert CalibrationRuns.last(lease.bundle).state == "failed"


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("`vouch-build` is not installed", {"code": None}),
        ("VOUCH_SIGNING_KEY", {"signing": Signing(is_required=True)}),
        ("a single bundle", {"live": None}),
        ("a single bundle", {"root": None}),
        ("neither calibration queries nor features", {"features": False}),
    ],
)
def test_calibration_that_cannot_succeed_is_refused_at_once(
    lease: Any, said: str, change: dict[str, Any]
) -> None:
    bundle = lease.bundle
    bundle.live = change.get("live", bundle.live)
    bundle.root = change.get("root", bundle.root)
    if not change.get("features", True):
        (bundle.directory / ITEM_FEATURES_FILE).unlink()
    some = runs(change.get("code", "pass"), signing=change.get("signing", UNSIGNED))
    with pytest.raises(WriteRefused, match=said):
        asyncio.run(some.begin(lease, {}))
    assert not (bundle.directory / RUN_FILE).exists()


def test_command_that_cannot_be_started_is_a_failure_with_a_reason(lease: Any) -> None:
    async def ran() -> LastCalibration:
        some = CalibrationRuns(
            Served(),  # type: ignore[arg-type]
            CalibrateCommand(("/nowhere/vouch-build",)),
        )
        await some.begin(lease, {})
        return await ended(some, lease.bundle)

    run = asyncio.run(ran())
    assert run.state == "failed"
    assert "cannot be started" in str(run.reason)


def test_items_that_share_their_label_can_be_queries(lease: Any) -> None:
    codes = np.array([0, 0, 1, 1, -1, 2, 2, 2, -1])
    rows = np.delete(np.arange(9), 2)  # an item of label 1 was deleted
    lease.bundle.retriever.gallery = SimpleNamespace(
        rows=lambda: rows, label_codes=codes.__getitem__
    )
    assert n_item_queries(lease.bundle) == 5
    live, lease.bundle.live = lease.bundle.live, None
    assert n_item_queries(lease.bundle) is None
    lease.bundle.live = live
    (lease.bundle.directory / ITEM_FEATURES_FILE).unlink()
    assert n_item_queries(lease.bundle) is None

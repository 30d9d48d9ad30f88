"""A calibration that went stale with its gallery is fitted again by a process of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model_store.bundles.directory import CURRENT_FILE
from model_store.bundles.kept_queries import ITEM_FEATURES_FILE
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.files import lock_between_processes
from model_store.gallery import LiveGallery
from service.serving.builder import CalibrateCommand, installed_command
from service.serving.calibration_runs import LOCK_FILE, CalibrationRuns, Recalibrator
from service.settings import Settings

pytestmark = pytest.mark.process

WRITES = "import pathlib, os, sys; pathlib.Path(sys.argv[1], 'said').write_text(os.environ['{}'])"
FAILS = "import sys; sys.exit('error: too few queries')"


def engine(
    root: Path,
    *,
    stale: str | None = "changed",
    keeps: bool = True,
    has_other_labels: bool = False,
    version: int = 1,
    bundle_id: str = "b" * 16,
    n_items: int = 9,
    in_files: bool = True,
    within: float | None = None,
) -> Any:
    if keeps:
        (root / ITEM_FEATURES_FILE).touch()
    (root / CURRENT_FILE).write_text("c" * 16)
    bundle = SimpleNamespace(
        root=root,
        name="g",
        directory=root,
        retriever=SimpleNamespace(
            calibration=SimpleNamespace(within=within),
            stale=stale,
            has_other_labels=has_other_labels,
            gallery=SimpleNamespace(n_items=n_items),
        ),
        manifest=SimpleNamespace(id=bundle_id),
        version=version,
        live=LiveGallery.__new__(LiveGallery) if in_files else object(),
    )
    return SimpleNamespace(bundle=bundle)


class Served:
    """Galleries that serve every new bundle."""

    @asynccontextmanager
    async def lease(self, name: str) -> Any:
        yield


def recalibrator(
    code: str | None,
    period_s: float = 1.0,
    signing: Signing = UNSIGNED,
    decisions: Path | None = None,
) -> Recalibrator:
    command = () if code is None else (sys.executable, "-c", code)
    galleries: Any = Served()
    runs = CalibrationRuns(galleries, CalibrateCommand(command, signing, decisions))
    return Recalibrator(runs, period_s)


def test_what_is_stale_is_calibrated_with_one_thread_and_the_services_key(tmp_path: Path) -> None:
    for variable, said in (("OMP_NUM_THREADS", "1"), ("VOUCH_SIGNING_KEY", "the.key")):
        again = recalibrator(WRITES.format(variable), signing=Signing(Path("the.key")))
        assert asyncio.run(again.look(engine(tmp_path))) is True
        assert (tmp_path / "said").read_text() == said


def test_what_reviewers_decided_is_evidence_where_there_is_any(tmp_path: Path) -> None:
    """With that file, or what was learned of it before would be forgotten."""
    file = tmp_path / "feedback.sqlite3"
    writes = "import pathlib, sys; pathlib.Path(sys.argv[-1], 'said').write_text(sys.argv[1])"
    again = recalibrator(writes, decisions=file)
    assert asyncio.run(again.look(engine(tmp_path))) is True
    assert (tmp_path / "said").read_text() == str(tmp_path)
    file.touch()
    assert asyncio.run(again.look(engine(tmp_path, bundle_id="c" * 16))) is True
    assert (tmp_path / "said").read_text() == "--decisions"


def test_nothing_is_started_where_there_is_no_need_or_no_means(tmp_path: Path) -> None:
    again = recalibrator(FAILS)
    assert asyncio.run(again.look(engine(tmp_path, keeps=False))) is None
    assert asyncio.run(again.look(engine(tmp_path, stale=None))) is None
    assert asyncio.run(again.look(engine(tmp_path, n_items=0))) is None
    assert asyncio.run(again.look(engine(tmp_path, in_files=False))) is None
    assert asyncio.run(again.look(engine(tmp_path, within=25.0))) is None, "needs new queries"
    assert asyncio.run(recalibrator(None).look(engine(tmp_path))) is None


def test_labels_that_it_does_not_know_are_learned_once_no_more_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = recalibrator("pass")

    def look(version: int, *, n_new: int = 1, bundle: str = "b") -> bool | None:
        return asyncio.run(
            again.look(
                engine(
                    tmp_path,
                    stale=None,
                    has_other_labels=n_new > 0,
                    version=version,
                    bundle_id=bundle * 16,
                )
            )
        )

    assert look(1, n_new=0) is None
    assert look(2) is None, "somebody is at it"
    assert look(3) is None
    assert look(3) is True
    assert look(4, bundle="c") is look(4, bundle="c") is None, "it was only just done"
    monkeypatch.setattr("service.serving.calibration_runs.LABELS_S", 0.0)
    assert look(4, bundle="c") is True


def test_labels_whose_fit_was_overtaken_by_a_compaction_are_learned_from_its_bundle(
    tmp_path: Path,
) -> None:
    again = recalibrator(FAILS)

    def look(bundle: str) -> bool | None:
        served = engine(tmp_path, stale=None, has_other_labels=True, bundle_id=bundle * 16)
        return asyncio.run(again.look(served))

    assert [look("b"), look("b")] == [None, False]
    assert [look("c"), look("c")] == [None, False], "nothing was published: it is not waited for"


def test_a_failure_is_logged_and_not_tried_again_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    again = recalibrator(FAILS)
    with caplog.at_level(logging.ERROR):
        assert asyncio.run(again.look(engine(tmp_path))) is False
    (record,) = caplog.records
    assert "too few queries" in record.__dict__["fields"]["reason"]
    assert asyncio.run(again.look(engine(tmp_path))) is None


def test_a_process_ends_with_the_service(tmp_path: Path) -> None:
    again = recalibrator("import time; time.sleep(600)", 0.0)

    async def stopped() -> None:
        watching = asyncio.create_task(again.watch(lambda: [engine(tmp_path)]))
        await asyncio.sleep(0.5)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    asyncio.run(asyncio.wait_for(stopped(), 60))


def test_the_builder_is_found_and_only_what_could_be_signed_is_made(tmp_path: Path) -> None:
    assert installed_command()[-3:] == ("-m", "index_builder.__main__", "calibrate")
    assert Settings().signing.objection() is None
    assert Settings(bundle_keys=(Path("k"),)).signing.objection() is not None
    assert Settings(bundle_keys=(Path("k"),), signing_key=Path("s")).signing.objection() is None
    unsigned = recalibrator("pass", signing=Signing(is_required=True))
    assert asyncio.run(unsigned.look(engine(tmp_path))) is False


def test_automatic_run_is_reported_like_one_that_a_client_started(tmp_path: Path) -> None:
    served = engine(tmp_path)

    async def ran() -> None:
        look = asyncio.create_task(recalibrator("import time; time.sleep(1)").look(served))
        while (run := CalibrationRuns.last(served.bundle)).state == "none":  # noqa: ASYNC110 - a file says so
            await asyncio.sleep(0.02)
        assert (run.state, run.ended_at) == ("running", None)
        assert await recalibrator("pass").look(served) is None, "another worker is at it"
        assert await look is True
        run = CalibrationRuns.last(served.bundle)
        assert (run.state, run.bundle_id) == ("succeeded", "c" * 16)
        assert await recalibrator(FAILS).look(served) is False
        run = CalibrationRuns.last(served.bundle)
        assert (run.state, run.reason) == ("failed", "too few queries")

    asyncio.run(asyncio.wait_for(ran(), 60))


def test_refit_waits_for_a_calibration_that_a_client_started(tmp_path: Path) -> None:
    again = recalibrator("pass")
    with lock_between_processes(tmp_path / LOCK_FILE):
        assert asyncio.run(again.look(engine(tmp_path))) is None
    assert asyncio.run(again.look(engine(tmp_path))) is True

"""Calibrations that a client starts, and refits of stale calibrations.

The state of the last run is in a file beside the gallery's bundles, so all workers and replicas can
read it. The service that started a run holds a lock until the end. A run without a lock was
interrupted.

A calibration is stale after too many changes. A refit is also needed after labels were added or
deleted. Until the refit, queries that show an added label get no match. Queries that show a deleted
label have no match in the gallery.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from filelock import FileLock, Timeout

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import current_id
from model_store.bundles.kept_queries import ITEM_FEATURES_FILE
from model_store.errors import VouchError, WriteRefused
from model_store.files import lock_between_processes, replacing
from model_store.gallery import LiveGallery
from model_store.sqlite import of_the_system
from service.scheduling import Tasks

from .builder import CalibrateCommand
from .engine import SearchEngine
from .lease import Lease
from .registry import Galleries

logger = logging.getLogger(__name__)

RETRY_S = 3600.0
"""Seconds between a failed refit of a bundle and the next attempt."""

LABELS_S = 600.0
"""Minimum seconds between two refits for changed labels; each refit writes a new bundle."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    bundle_id: str
    at: float
    succeeded: bool


class Recalibrator:
    """Starts one process at a time, for the first gallery that needs a refit.

    Parameters
    ----------
    runs : runs the calibrations; if the command is not installed, nothing is refitted.
    period_s : seconds between checks.
    """

    def __init__(self, runs: CalibrationRuns, period_s: float) -> None:
        self._runs = runs
        self._period_s = period_s
        self._attempts: dict[str, _Attempt] = {}
        self._seen: dict[str, tuple[str, int]] = {}

    async def watch(self, engines: Callable[[], Sequence[SearchEngine]]) -> None:
        """Check every engine in an endless loop."""
        while True:
            await asyncio.sleep(self._period_s)
            for engine in engines():
                await self.look(engine)

    async def look(self, engine: SearchEngine) -> bool | None:
        """Refit a calibration if needed.

        Returns whether the refit succeeded; None if no refit was started. While the gallery is
        being calibrated, no refit is started.
        """
        bundle, now = engine.bundle, time.monotonic()
        root, name = bundle.root, bundle.name
        if root is None or not self._is_needed(bundle, now):
            return None
        reason = self._runs.command.signing.objection(root)
        if reason is None:
            try:
                reason = await self._runs.refit(bundle, root)
            except WriteRefused:
                return None
            except VouchError as error:
                reason = str(error)
        fields = {"gallery": name, "bundle": bundle.manifest.id, "seconds": time.monotonic() - now}
        self._attempts[name] = attempt = _Attempt(bundle.manifest.id, now, reason is None)
        if attempt.succeeded:
            logger.info("calibrated again", extra={"fields": fields})
        else:
            fields["reason"] = reason
            logger.error("not calibrated again", extra={"fields": fields})
        return attempt.succeeded

    def _is_needed(self, bundle: Bundle, now: float) -> bool:
        """Return whether the gallery needs a refit, and can be refitted."""
        in_files = isinstance(bundle.live, LiveGallery)  # else in a database
        if not (self._runs.command.is_installed and in_files):
            return False
        if not (bundle.directory / ITEM_FEATURES_FILE).exists():
            return False
        if not bundle.retriever.gallery.n_items:  # an empty gallery cannot be calibrated
            return False
        calibration = bundle.retriever.calibration
        if calibration is not None and calibration.within is not None:  # needs queries with places
            return False
        last = self._attempts.get(bundle.name)
        if bundle.retriever.stale is None and not self._has_other_labels(bundle, last, now):
            return False
        return not last or last.bundle_id != bundle.manifest.id or now - last.at >= RETRY_S

    def _has_other_labels(self, bundle: Bundle, last: _Attempt | None, now: float) -> bool:
        """Return whether a refit may start now because labels changed after the calibration."""
        state = bundle.manifest.id, bundle.version
        has_settled = self._seen.get(bundle.name) == state
        self._seen[bundle.name] = state
        if not has_settled or not bundle.retriever.has_other_labels:
            return False
        # A compaction may have interrupted the refit, and does not refit: retry without a delay.
        return last is None or not last.succeeded or now - last.at >= LABELS_S


RUN_FILE, LOCK_FILE = "calibration-run.json", ".calibrating"

INTERRUPTED = "The service ended before the calibration. Start the calibration again."

RunState = Literal["none", "running", "succeeded", "failed"]


@dataclass(frozen=True, slots=True)
class LastCalibration:
    """The last calibration of a gallery that the service ran.

    Attributes
    ----------
    state : ``none`` if the service never calibrated the gallery.
    started_at, ended_at : ISO 8601, or None.
    bundle_id : the new bundle; None unless the run succeeded.
    reason : why the run failed.
    """

    state: RunState = "none"
    started_at: str | None = None
    ended_at: str | None = None
    bundle_id: str | None = None
    reason: str | None = None


class CalibrationRuns:
    """Runs calibrations, and returns their state.

    Parameters
    ----------
    galleries : the served galleries; a new bundle is activated there.
    command : the command that calibrates.
    """

    def __init__(self, galleries: Galleries, command: CalibrateCommand) -> None:
        self._galleries, self.command = galleries, command
        self._tasks = Tasks()

    async def begin(self, lease: Lease, promises: Mapping[str, float]) -> LastCalibration:
        """Start a calibration; it continues after the request.

        Parameters
        ----------
        promises : see `CalibrateCommand.run`.

        Raises
        ------
        WriteRefused : this service cannot calibrate the gallery, or is calibrating it.
        WriteError : the state of the run cannot be written.
        """
        root = self._require_possible(lease.bundle)
        run, lock = await _begun(lease.bundle.name, root)
        self._tasks.start(self._calibrate(lease.bundle, root, run, promises, lock))
        return run

    async def refit(self, bundle: Bundle, root: Path) -> str | None:
        """Calibrate a gallery with its own error bounds; return the reason of a failure, or None.

        Parameters
        ----------
        root : directory of the gallery's bundles.

        Raises
        ------
        WriteRefused : the gallery is being calibrated.
        WriteError : the state of the run cannot be written.
        """
        run, lock = await _begun(bundle.name, root)
        return await self._calibrate(bundle, root, run, {}, lock)

    @staticmethod
    def last(bundle: Bundle) -> LastCalibration:
        """Return the state of the last run."""
        root = bundle.root
        if root is None:
            return LastCalibration()
        try:
            run = LastCalibration(**json.loads((root / RUN_FILE).read_bytes()))
        except FileNotFoundError:
            return LastCalibration()
        except OSError as error:
            raise of_the_system(error) from error
        if run.state == "running" and _is_free(root):
            # The run may have ended between the two looks.
            run = LastCalibration(**json.loads((root / RUN_FILE).read_bytes()))
            if run.state == "running":
                run = replace(run, state="failed", reason=INTERRUPTED)
        return run

    async def close(self) -> None:
        """End the running calibrations."""
        await self._tasks.cancel()

    def _require_possible(self, bundle: Bundle) -> Path:
        """Return the directory of the gallery's bundles."""
        root = bundle.root
        if not self.command.is_installed:
            raise WriteRefused(
                "This service cannot calibrate, because `vouch-build` is not installed beside it. "
                f"The operator runs `vouch-build calibrate {root or 'BUNDLES'}`."
            )
        if (objection := self.command.signing.objection(root)) is not None:
            raise WriteRefused(objection)
        if root is None or not isinstance(bundle.live, LiveGallery):
            raise WriteRefused(
                f"The gallery {bundle.name!r} cannot be calibrated here: it is a single bundle, "
                "which never changes, or it is in a database. The operator calibrates it when it "
                "is built."
            )
        if not (bundle.directory / ITEM_FEATURES_FILE).exists():
            raise WriteRefused(
                f"The gallery {bundle.name!r} stores neither calibration queries nor features of "
                "its items. The operator calibrates it with `vouch-build calibrate --queries`."
            )
        return root

    async def _calibrate(
        self,
        bundle: Bundle,
        root: Path,
        run: LastCalibration,
        promises: Mapping[str, float],
        lock: FileLock,
    ) -> str | None:
        """Calibrate, record the end of the run, and release the lock; see `refit`."""
        reason = None
        try:
            try:
                reason = await self.command.run(bundle, promises)
            except OSError as error:
                reason = f"`vouch-build` cannot be started: {error}."
            bundle_id = None
            if reason is None:
                bundle_id = await asyncio.to_thread(current_id, root)
                with suppress(VouchError):  # the watch of the galleries tries again
                    async with self._galleries.lease(bundle.name):
                        pass  # the new bundle is served before the run has ended
            ended = replace(
                run,
                state="succeeded" if reason is None else "failed",
                ended_at=_now(),
                bundle_id=bundle_id,
                reason=reason,
            )
            await asyncio.to_thread(_write, root, ended)
            fields = {"gallery": bundle.name, "bundle": bundle_id, "reason": reason}
            fields["started_at"] = run.started_at
            logger.info("calibration ended", extra={"fields": fields})
        except VouchError as error:
            fields = {"gallery": bundle.name, "reason": str(error)}
            logger.error("calibration not recorded", extra={"fields": fields})  # noqa: TRY400
        finally:
            lock.release()
        return reason


def n_item_queries(bundle: Bundle) -> int | None:
    """Return the number of items that share their label with another item.

    None if the gallery cannot be calibrated here.
    """
    gallery = bundle.retriever.gallery
    if bundle.root is None or not isinstance(bundle.live, LiveGallery):
        return None
    if not (bundle.directory / ITEM_FEATURES_FILE).exists():
        return None
    codes = gallery.label_codes(gallery.rows())
    counts = np.bincount(codes[codes >= 0])
    return int(counts[counts > 1].sum())


async def _begun(name: str, root: Path) -> tuple[LastCalibration, FileLock]:
    """Lock a gallery, and record the start of a run; the caller releases the lock."""
    lock = lock_between_processes(root / LOCK_FILE)
    try:
        await asyncio.to_thread(lock.acquire, blocking=False)
    except Timeout:
        raise WriteRefused(
            f"The gallery {name!r} is being calibrated already. Wait until that calibration has "
            "ended."
        ) from None
    except OSError as error:
        raise of_the_system(error) from error
    run = LastCalibration("running", started_at=_now())
    try:
        await asyncio.to_thread(_write, root, run)
    except BaseException:
        lock.release()
        raise
    return run, lock


def _write(root: Path, run: LastCalibration) -> None:
    try:
        with replacing(root / RUN_FILE) as staged:
            staged.write_text(json.dumps(asdict(run), indent=1) + "\n", "utf-8")
    except OSError as error:
        raise of_the_system(error) from error


def _is_free(root: Path) -> bool:
    """Return whether no process calibrates the gallery."""
    lock = lock_between_processes(root / LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError:  # a read-only directory: what the file says is all that is known
        return False
    lock.release()
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""The history of a gallery's bundles: what was published when, and how well it was calibrated.

A summary needs the manifest, the calibration and the label codes of a bundle. It opens no gallery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from model_store.bundles.directory import published_at
from model_store.bundles.manifest import (
    MANIFEST_FILE,
    Manifest,
    parse_manifest,
    verify_file,
)
from model_store.decision import Calibration, outcome_of
from model_store.decision.calibration import FILES, written_at
from model_store.errors import BundleTampered, VouchError
from model_store.gallery.files.gallery import LABELS_FILE
from model_store.installation import DISTRIBUTION
from model_store.messages import Message, message
from model_store.records import GalleryOutcome
from model_store.table import load_rows

_MOST_KEPT = 1024
"""Maximum number of cached summaries. A bundle never changes, so its summary stays valid."""


@dataclass(frozen=True, slots=True)
class CalibrationSummary:
    """The calibration of a bundle, and its outcome.

    Attributes
    ----------
    written_at : time when the calibration file was written; in a copied bundle, time of the copy.
    queries : kind of the calibration queries, such as ``held_out_images``.
    delta : δ; the error bound holds with probability 1 − δ over calibrations.
    outcome : measured shares and bounds; see `GalleryOutcome`.
    """

    written_at: datetime
    queries: str
    delta: float
    outcome: GalleryOutcome

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; times as ISO 8601."""
        return {
            "written_at": self.written_at.isoformat(timespec="seconds"),
            "queries": self.queries,
            "delta": self.delta,
            **self.outcome.model_dump(exclude={"lines"}),
        }


@dataclass(frozen=True, slots=True)
class BundleSummary:
    """What is known about a bundle without opening its gallery.

    Attributes
    ----------
    id : id of the bundle.
    published_at : time when the bundle was published; in a copied bundle, time of the copy.
    release : release of Vouch that built the bundle; None if it is unknown.
    n_items : number of items when the bundle was published; None if it is unknown.
    n_labels : number of labels of these items; None if it is unknown, for example in a database.
    calibration : None if the bundle is not calibrated, or if its calibration cannot be read.
    reason : why the bundle cannot be read and served; None if it can.
    """

    id: str
    published_at: datetime
    release: str | None = None
    n_items: int | None = None
    n_labels: int | None = None
    calibration: CalibrationSummary | None = None
    reason: Message | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; times as ISO 8601."""
        return {
            **asdict(replace(self, calibration=None)),
            "published_at": self.published_at.isoformat(timespec="seconds"),
            "calibration": None if self.calibration is None else self.calibration.as_json(),
        }


def bundle_history(directories: Sequence[Path]) -> list[BundleSummary]:
    """Summarise bundles. A bundle that cannot be read has a ``reason``.

    A bundle that another process removes during the call is left out.
    """
    found = []
    for directory in directories:
        try:
            at = datetime.fromtimestamp(published_at(directory), UTC)
        except FileNotFoundError:
            continue
        try:
            found.append(_summary(directory, at))
        except (VouchError, OSError) as error:
            cause = error.strerror if isinstance(error, OSError) else error
            reason = message("bundle_unreadable", cause=str(cause))
            found.append(BundleSummary(directory.name, at, reason=reason))
    return found


@lru_cache(_MOST_KEPT)
def _summary(directory: Path, at: datetime) -> BundleSummary:
    """Summarise the bundle in ``directory``, which was published ``at`` this time.

    Raises
    ------
    BundleTampered, BundleMismatch : see `read_manifest`; only the files that are read are verified.
    OSError : a file cannot be read.
    """
    manifest = parse_manifest((directory / MANIFEST_FILE).read_bytes(), directory.name)
    return BundleSummary(
        directory.name,
        at,
        manifest.library_versions.get(DISTRIBUTION),
        manifest.gallery.get("n_items"),
        _n_labels(directory, manifest),
        _calibration(directory, manifest),
    )


def _n_labels(directory: Path, manifest: Manifest) -> int | None:
    if LABELS_FILE not in manifest.files:  # a gallery in a database
        return None
    verify_file(directory, manifest, LABELS_FILE)
    codes = np.unique(load_rows(directory / LABELS_FILE))
    return int((codes >= 0).sum())


def _calibration(directory: Path, manifest: Manifest) -> CalibrationSummary | None:
    numbers, arrays = FILES["image"]
    if numbers not in manifest.files:
        return None
    for name in (numbers, arrays):
        verify_file(directory, manifest, name)
    try:
        fitted = Calibration.load(directory, with_means=False)
        assert fitted is not None  # noqa: S101 - its file exists
        return CalibrationSummary(
            written_at(directory),
            fitted.report["queries"],
            fitted.delta,
            outcome_of(fitted, manifest.metrics),
        )
    except OSError:
        raise
    except Exception as error:
        # The file is what its publisher wrote, but another release may have written it.
        raise BundleTampered(
            f"{directory.name}/{numbers} is not a calibration of this release "
            f"({type(error).__name__}). Run `vouch-build calibrate` on its directory of bundles."
        ) from error

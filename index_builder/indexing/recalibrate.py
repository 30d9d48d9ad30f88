"""Calibrates a bundle with the queries and items that it stores; needs no images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from index_builder.calibration.fit_again import NOTHING_KEPT, Refit, fit_again, fit_first
from index_builder.calibration.probabilities import corrected_by_feedback
from index_builder.configuration.build import parse_promises
from index_builder.configuration.environment import database_access, signing
from index_builder.indexing.assemble import Check, accept_any, calibrated
from index_builder.indexing.bundle_evidence import opened
from index_builder.progress import console
from model_store.bundles.changes import open_writable, require_files
from model_store.bundles.compaction import RENAMED_LABELS, Calibrate, Compaction
from model_store.bundles.directory import is_bundle_id, locate, refuse_bundle
from model_store.bundles.kept_queries import KEPT_QUERIES_FILE
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.retention import Hold
from model_store.decision import Calibration
from model_store.encoder.contract import Encoder
from model_store.errors import CalibrationError, UsageError
from model_store.feedback import DrawnQuery, FeedbackLog, drawn_queries, require_feedback_file
from model_store.gallery.opening import open_gallery
from model_store.machine import one_blas_thread

if TYPE_CHECKING:
    from model_store.gallery import FaissGallery

SEED = 0
"""Seed of the first calibration."""


def recalibrate_bundle(
    root: Path,
    promises: Mapping[str, float],
    decisions: Path | None = None,
    check: Check = accept_any,
) -> Path:
    """Fit the calibration of ``root``'s current bundle again, and publish the new bundle.

    The new bundle includes all changes of the gallery, even changes made during the fit. If the
    bundle was never calibrated, its labelled items are the queries; see `fit_again`.

    Parameters
    ----------
    promises : error bounds by their names in `CalibrationConfig`; a bound that is not given keeps
        its current value.
    decisions : the service's feedback file. The service draws random queries for review; for their
        use, see `fit_again`.
    check : see `Check`.

    Raises
    ------
    ConfigError : an error bound is out of range, or ``decisions`` does not exist.
    UsageError : ``decisions`` are given, but the bundle was never calibrated.
    CalibrationError : the bundle stores too few queries or features of items, or the new
        calibration predicts the queries worse than the current calibration.
    WriteRefused : the bundle cannot be changed, or its gallery is in a database.
    """
    directory = locate(root)
    before = Calibration.load(directory)
    if before is None and decisions is not None:
        raise UsageError(
            "The bundle was never calibrated, and the first calibration uses only its items. "
            "Remove --decisions."
        )
    if before is None:
        return _calibrated_by_items(root, promises, check)
    if not (directory / KEPT_QUERIES_FILE).exists():
        raise CalibrationError(NOTHING_KEPT)
    drawn: list[DrawnQuery] = []
    if decisions is not None:
        require_feedback_file(decisions)
        name = read_manifest(directory).gallery["name"]
        # Galleries created over HTTP store feedback under their id.
        key = root.name if is_bundle_id(root.name) else str(name)
        drawn = drawn_queries(decisions, key, before.encoder_fingerprint)
    calibrate = calibration_of(before, promises, drawn, must=True, check=check)
    return _published(root, directory, calibrate)


def _calibrated_by_items(root: Path, promises: Mapping[str, float], check: Check) -> Path:
    """Calibrate a bundle for the first time; its items are the queries."""
    with opened(root) as bundle:
        live = bundle.require_log()
        calibrate = first_calibration_of(bundle.retriever.encoder, promises, check)
        with Compaction(root, bundle.manifest, live, signing(), calibrate) as compaction:
            return compaction.publish()


def first_calibration_of(
    encoder: Encoder, promises: Mapping[str, float], check: Check = accept_any
) -> Calibrate:
    """Return a function that calibrates a gallery for the first time, during a compaction."""
    config = parse_promises(promises)

    def calibrate(gallery: FaissGallery, staging: Path, manifest: Manifest) -> Manifest:
        with one_blas_thread():
            fitted = fit_first(staging, gallery, encoder, config, SEED)
        return calibrated(manifest, fitted, staging, check)

    return calibrate


def is_outdated(root: Path) -> bool:
    """Return whether an earlier release calibrated the current bundle of ``root``."""
    calibration = Calibration.load(locate(root))
    return calibration is not None and calibration.outdated is not None


def can_be_renewed(root: Path) -> bool:
    """Return True if the current bundle is outdated and stores queries for a recalibration."""
    return (locate(root) / KEPT_QUERIES_FILE).exists() and is_outdated(root)


def _published(root: Path, directory: Path, calibrate: Calibrate) -> Path:
    """Compact the current bundle of ``root`` with ``calibrate``; needs no encoder.

    Raises
    ------
    WriteRefused : the bundle cannot be changed, or its gallery is in a database.
    """
    refuse_bundle(root)
    hold, manifest = Hold(directory), read_manifest(directory)
    live = open_writable(root, directory, open_gallery(directory, database_access()))
    try:
        logged = require_files(live, manifest.gallery["name"])
        with Compaction(root, manifest, logged, signing(), calibrate) as compaction:
            return compaction.publish()
    finally:
        live.close()
        hold.close()


def correct_bundle(root: Path, feedback: Path, check: Check = accept_any) -> Path:
    """Correct match probabilities of the current bundle with feedback; publish the new bundle.

    `vouch-build rollback` restores the previous bundle.

    Parameters
    ----------
    check : see `Check`.

    Raises
    ------
    CalibrationError : too few pairs of query and item were reviewed, or the correction does not
        improve the prediction of the reviews. No bundle is published.
    ConfigError : ``feedback`` does not exist.
    WriteRefused : the bundle cannot be changed, or its gallery is in a database.
    """
    require_feedback_file(feedback)

    def calibrate(_: FaissGallery, staging: Path, manifest: Manifest) -> Manifest:
        before = Calibration.load(staging)
        if before is None:
            raise CalibrationError(
                "The bundle is not calibrated, so it has no probabilities to correct."
            )
        corrected = corrected_by_feedback(before, FeedbackLog(feedback))
        report = corrected.report["feedback"]
        if not report["applied"]:
            raise CalibrationError(
                "The correction is not published: on held-out decisions the log loss is "
                f"{report['log_loss_after']:.4f} with the correction and "
                f"{report['log_loss_before']:.4f} without. Review more queries."
            )
        return calibrated(manifest, corrected, staging, check)

    return _published(root, locate(root), calibrate)


def calibration_of(
    before: Calibration,
    promises: Mapping[str, float],
    drawn: Sequence[DrawnQuery] = (),
    *,
    must: bool = False,
    check: Check = accept_any,
) -> Calibrate:
    """Return a function that recalibrates the gallery during a compaction.

    Parameters
    ----------
    before : the current calibration.
    promises : see `recalibrate_bundle`.
    drawn : randomly drawn queries that were reviewed.
    must : whether to raise an error if the bundle stores too few queries, or if the new calibration
        is worse than ``before``. If False, ``before`` is kept instead.
    check : see `Check`.
    """
    config = parse_promises(promises, before)

    def calibrate(gallery: FaissGallery, staging: Path, manifest: Manifest) -> Manifest:
        try:
            with one_blas_thread():  # one thread gives the same sums on every machine
                renamed = manifest.gallery.get(RENAMED_LABELS, {})
                refit = fit_again(staging, gallery, before, config, drawn, renamed)
            _require_as_good(refit)
        except CalibrationError as error:
            if must:
                raise
            console.print(f"The calibration is unchanged. {error}", markup=False)
            return manifest
        renewed = calibrated(manifest, refit.calibration, staging, check)
        console.print(
            f"calibrated again, with {refit.calibration.n_queries:,} queries and "
            f"{refit.calibration.report['n_leave_one_out']:,} items excluded from their own "
            "results; "
            f"log loss {refit.loss_after:.4f}, before {refit.loss_before:.4f}"
        )
        return renewed

    return calibrate


def _require_as_good(refit: Refit) -> None:
    if not refit.predicts_as_well:
        raise CalibrationError(
            f"The new calibration is not published: it predicts its queries worse (log loss "
            f"{refit.loss_after:.4f}, before {refit.loss_before:.4f}). Calibrate with recent "
            "queries: `vouch-build calibrate BUNDLES --queries FILE`."
        )

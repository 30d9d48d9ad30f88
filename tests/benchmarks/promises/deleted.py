"""Whole labels are deleted from a live gallery: errors of `match` until and after the refit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.kept_queries import keep
from index_builder.indexing.recalibrate import calibration_of
from model_store.bundles.changes import open_live
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import current_id
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.decision import Calibration
from model_store.errors import CalibrationError
from model_store.gallery import Delete, FaissGallery, Gallery
from model_store.retriever import Retriever

from .answers import Answers, answer_all
from .measures import ALPHA, MAX_ERROR, STATED, Record, calibrate
from .worlds import World

N_DELETED = 3
"""Labels that are deleted: of forty, less than the tenth of the items that may change."""

Bools = NDArray[np.bool_]


def measure_deleted(world: World, seed: int, directory: Path) -> Record:
    """Delete labels over the live gallery, then refit from what the bundle keeps.

    Parameters
    ----------
    directory : where the gallery of ``world`` lies; it becomes a bundle.

    Returns
    -------
    Of each state, ``before``, ``deleted`` and ``refit``: whether its guarantee holds, the share of
    `match`, and the error at the stated share of absent queries; in the stream as it was, whose
    queries of deleted labels are absent now (``as_before``); and there with the true share stated
    (``told``). There is no ``refit`` where it is refused.
    """
    before = calibrate(world, seed)
    before.save(directory)
    known = world.encoder, world.gallery, world.gallery_images, world.calibration, seed
    keep(directory, GalleryQueries(*known, are_views=False, unseen=True))
    root = published(world, directory)
    generator = np.random.default_rng([seed, 8])
    names = np.unique(world.gallery_images.labels)
    gone = set(generator.choice(names, N_DELETED, replace=False).tolist())
    live = open_live(root, root / str(current_id(root)))
    items = zip(world.gallery_images.ids, world.gallery_images.labels, strict=True)
    live.commit([Delete(item_id) for item_id, label in items if label in gone])
    asked_before = np.isin(world.matched.labels, sorted(gone))
    states: Record = {"before": _state(world, world.gallery, before, np.zeros_like(asked_before))}
    snapshot = live.snapshot()
    served = Retriever(world.encoder, snapshot, before)
    states["deleted"] = _state(world, snapshot, before, asked_before) | {
        "guaranteed": served.not_guaranteed is None and served.stale is None
    }
    manifest = read_manifest(root / str(current_id(root)))
    calibrated = calibration_of(before, {}, must=True)
    try:
        with Compaction(root, manifest, live, calibrate=calibrated) as compaction:
            refit = compaction.prepare()
            compaction.switch()
    except CalibrationError:  # it would predict worse, so that the guarantee stays withdrawn
        return states
    finally:
        live.close()
    after = Calibration.load(refit)
    assert after is not None
    states["refit"] = _state(world, FaissGallery(refit), after, asked_before)
    return states


def published(world: World, directory: Path) -> Path:
    """Publish the gallery as a bundle that is never encoded with; return the bundles' directory."""
    (directory / "encoder.onnx").write_bytes(b"no network")
    manifest = Manifest(
        gallery={"name": "g", "description": "", "n_items": world.gallery.n_items},
        encoder={"fingerprint": world.encoder.fingerprint},
        calibration=None,
        metrics=None,
        samples=(),
        library_versions={},
    )
    return publish(directory, manifest, directory.parent / "bundles", keep=False).parent


def _state(world: World, gallery: Gallery, calibration: Calibration, are_gone: Bools) -> Record:
    """Judge the verdicts of one state of the gallery."""
    matched, absent = (
        answer_all(world.encoder, gallery, calibration, images)
        for images in (world.matched, world.absent)
    )
    gone, there = matched.at(are_gone), matched.at(~are_gone)
    share_gone = (1 - STATED) * float(are_gone.mean())
    weights = STATED, share_gone, 1 - STATED - share_gone
    scale = STATED / (STATED + share_gone)
    stated = STATED * scale, share_gone * scale, 1 - STATED
    parts = absent, gone, there
    as_stated = _error(calibration, STATED, parts, stated)
    as_before = _error(calibration, STATED, parts, weights)
    told = _error(calibration, STATED + share_gone, parts, weights)
    promises = calibration.promises(STATED)
    return {
        "guaranteed": any(one.guaranteed for one in promises.matches),
        "answered": as_stated[0],
        "error": as_stated[1],
        "exceeded": as_stated[1] > MAX_ERROR,
        "error_as_before": as_before[1],
        "exceeded_as_before": as_before[1] > MAX_ERROR,
        "exceeded_told": told[1] > MAX_ERROR,
        "gone_matched": float(gone.is_match(calibration, STATED, ALPHA).mean())
        if len(gone)
        else None,
        "absent_matched": float(absent.is_match(calibration, STATED, ALPHA).mean()),
    }


def _error(
    calibration: Calibration,
    absent_share: float,
    parts: tuple[Answers, ...],
    shares: tuple[float, ...],
) -> tuple[float, float]:
    """Return the share of `match` in a stream of the parts, and the error among them.

    Parameters
    ----------
    absent_share : that the probabilities are for.
    """
    answered = wrong = 0.0
    for part, share in zip(parts, shares, strict=True):
        if len(part):
            called = part.is_match(calibration, absent_share, ALPHA)
            answered += share * float(called.mean())
            wrong += share * float((called & ~part.correct).mean())
    return answered, wrong / answered if answered else 0.0

"""A live gallery that was never calibrated is calibrated with its own items as queries."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index_builder.indexing.recalibrate import first_calibration_of, recalibrate_bundle
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import current_id
from model_store.bundles.kept_queries import CalibrationInputs, ItemFeatures
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.decision.outcome import MANY_SERIES
from model_store.decision.outliers import averaging
from model_store.errors import CalibrationError, UsageError
from model_store.gallery import Edit, FaissGallery, Thumbnail, Upsert, write_faiss_gallery
from model_store.table import HalfRows
from tests.support.kept_worlds import (
    DIM,
    ENCODER,
    N_EACH,
    N_FEATURES,
    N_LABELS,
    OF_ITEMS,
    asked,
    calibration,
    compacted,
    drawn,
    opened,
    put,
)
from tests.support.narrowing import not_none


def empty_gallery(tmp_path: Path) -> Path:
    """An empty gallery that stores the features of later items, as galleries made over HTTP do."""
    staging = tmp_path / "staging"
    staging.mkdir()
    write_faiss_gallery(staging, drawn(OF_ITEMS[:0], 0), [], ENCODER.fingerprint)
    width = N_FEATURES // averaging(N_FEATURES)
    none = HalfRows.of(np.empty((0, width), dtype=np.float32))
    ItemFeatures((), (), none, np.empty(0, dtype=bool), share=1.0).save(staging)
    (staging / "encoder.onnx").write_bytes(b"no network")
    manifest = Manifest(
        gallery={"name": "g", "description": "", "n_items": 0},
        encoder={"fingerprint": ENCODER.fingerprint, "dim": DIM, "n_features": N_FEATURES},
        calibration=None,
        metrics=None,
        samples=(),
        library_versions={},
    )
    return publish(staging, manifest, tmp_path / "bundles", keep=False).parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return empty_gallery(tmp_path)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of labelled items, and some without a label, after its first calibration."""
    root = empty_gallery(tmp_path_factory.mktemp("first"))
    plain = [
        replace(one, item=replace(one.item, label=None)) for one in put(OF_ITEMS[:20], 5, "plain")
    ]
    filled(root, [*put(OF_ITEMS, 1), *plain])
    return calibrated(root, max_error=0.1)


def filled(root: Path, writes: list[Upsert]) -> None:
    live = opened(root)
    live.commit(writes)
    live.close()


def calibrated(root: Path, **promises: float) -> Path:
    live, manifest = opened(root), read_manifest(root / str(current_id(root)))
    calibrate = first_calibration_of(ENCODER, promises)
    with Compaction(root, manifest, live, calibrate=calibrate) as compaction:
        prepared = compaction.prepare()
        compaction.switch()
    live.close()
    return prepared


def test_labelled_items_become_the_queries_of_a_first_calibration(first: Path) -> None:
    fitted = calibration(first)
    assert fitted.report["queries"] == "left_out_items"
    assert fitted.n_queries == len(OF_ITEMS) == N_LABELS * N_EACH
    assert fitted.report["n_absent"] == len(OF_ITEMS), "the same, with their label hidden"
    assert fitted.max_error == 0.1
    assert fitted.alpha == 0.05, "the default of a bound that is not given"
    new = asked(FaissGallery(first), fitted, drawn(np.repeat(np.arange(N_LABELS), 10), 12))
    assert new.count("match") > 0.3 * len(new)
    stored = ItemFeatures.load(first)
    assert stored is not None
    assert not stored.was_put.any(), "they are not new to this calibration"


def test_first_calibration_counts_the_items_that_cannot_be_queries(first: Path, root: Path) -> None:
    assert calibration(first).evidence.lone_share == 0, "items without a label are not counted"
    lone = [
        replace(one, item=replace(one.item, id=f"lone {n}", label=f"lone {n}"))
        for n, one in enumerate(put(OF_ITEMS[:56], 7))
    ]
    filled(root, [*put(OF_ITEMS, 1), *lone])
    share = 56 / (56 + len(OF_ITEMS))
    assert calibration(calibrated(root)).evidence.lone_share == pytest.approx(share)
    assert calibration(compacted(root, calibrated=True)).evidence.lone_share == pytest.approx(share)


def test_labels_of_six_items_have_the_size_class_that_answers_give_them(root: Path) -> None:
    """A query finds five items of its label, but the served gallery has six."""
    filled(root, put(np.repeat(np.arange(N_LABELS), 6), 1))
    for fitted in (calibration(calibrated(root)), calibration(compacted(root, calibrated=True))):
        evidence = fitted.evidence
        assert set(fitted.label_classes.tolist()) == {2}
        assert set(evidence.first_classes.tolist()) == {2}
        assert set(evidence.likeliest_classes.tolist()) == {2}
        assert set(evidence.true_classes[~evidence.absent].tolist()) == {2}


def test_first_calibration_has_the_recall_of_new_queries(first: Path) -> None:
    of_items = calibration(first).report["cross_fitted"]["recall_at_1"]
    assert of_items == pytest.approx(
        recall_of_new(FaissGallery(first)), abs=0.06
    )  # two standard errors of 168 items


def test_unlabelled_items_are_no_queries(first: Path) -> None:
    kept = CalibrationInputs.load(first)
    assert kept is not None
    assert not any(name.startswith("plain") for name in kept.matched.ids)


def test_first_calibration_can_be_refitted_after_more_items(first: Path) -> None:
    before = calibration(first)
    filled(first.parent, put(np.arange(N_LABELS), 6, "later"))
    after = calibration(compacted(first.parent, calibrated=True))
    assert after.report["queries"] == "left_out_items"
    assert after.report["n_matched"] == before.report["n_matched"]
    assert after.report["n_leave_one_out"] > 0, "items that came later are queries too"
    # No detector of a refit has seen the item that it scores.
    scores = [np.median(one.outlier_scores) for one in (before, after)]
    assert scores[1] == pytest.approx(scores[0], rel=0.1)


def in_two_sizes(seed: int, first: str, second: str) -> list[Upsert]:
    """Photographs of the items, each twice."""
    generator = np.random.default_rng(seed)
    pictures = generator.integers(0, 256, (len(OF_ITEMS), 12, 12, 3), dtype=np.uint8)
    return [
        replace(one, item=replace(one.item, thumbnail=picture_of(pixels, side)))
        for prefix, side in ((first, 160), (second, 120))
        for one, pixels in zip(put(OF_ITEMS, seed, prefix), pictures, strict=True)
    ]


def test_copies_of_a_photograph_do_not_find_each_other(root: Path) -> None:
    """As queries they would be right every time."""
    filled(root, in_two_sizes(1, "put", "copy"))
    directory = calibrated(root)
    kept = CalibrationInputs.load(directory)
    assert kept is not None
    groups = dict(zip(kept.matched.ids, kept.matched.groups, strict=True))
    assert all(groups[f"put-{n:04d}"] == groups[f"copy-{n:04d}"] for n in range(len(OF_ITEMS)))
    fitted = calibration(directory)
    assert fitted.report["cross_fitted"]["recall_at_1"] < 0.99


def test_copies_that_are_added_later_do_not_find_each_other_either(root: Path) -> None:
    filled(root, put(OF_ITEMS, 1))
    calibrated(root)
    filled(root, in_two_sizes(2, "later", "copy"))
    directory = compacted(root, calibrated=True)
    recall = calibration(directory).report["cross_fitted"]["recall_at_1"]
    assert recall == pytest.approx(recall_of_new(FaissGallery(directory)), abs=0.06)


def bursts(*, named: bool) -> list[Upsert]:
    """Each photograph three times, as a series, which the metadata name or not."""
    return [
        replace(one, item=replace(one.item, metadata={"group": one.item.id[-4:]} if named else {}))
        for prefix in ("first", "second", "third")
        for one in put(OF_ITEMS, 1, prefix)
    ]


def test_photographs_of_a_named_series_do_not_find_each_other(root: Path, tmp_path: Path) -> None:
    filled(root, bursts(named=True))
    report = calibration(directory := calibrated(root)).report
    recall = report["cross_fitted"]["recall_at_1"]
    assert recall == pytest.approx(recall_of_new(FaissGallery(directory)), abs=0.06)
    named = report["series_share"]
    (tmp_path / "unnamed").mkdir()
    filled(unnamed := empty_gallery(tmp_path / "unnamed"), bursts(named=False))
    report = calibration(calibrated(unnamed)).report
    assert report["cross_fitted"]["recall_at_1"] > 0.99
    # With 8 dimensions, independent items are sometimes near each other.
    assert report["series_share"] > max(2 * named, MANY_SERIES)


def test_photograph_that_comes_later_joins_its_series(root: Path) -> None:
    filled(root, [one for one in bursts(named=True) if not one.item.id.startswith("third")])
    calibrated(root)
    filled(root, [one for one in bursts(named=True) if one.item.id.startswith("third")])
    directory = compacted(root, calibrated=True)
    stored = not_none(ItemFeatures.load(directory))
    assert len(set(stored.groups)) == len(OF_ITEMS)
    recall = calibration(directory).report["cross_fitted"]["recall_at_1"]
    assert recall == pytest.approx(recall_of_new(FaissGallery(directory)), abs=0.06)


def test_series_can_be_named_after_the_calibration(root: Path) -> None:
    filled(root, bursts(named=False))
    calibrated(root)
    edits = [Edit(one.item.id, {"metadata": one.item.metadata}) for one in bursts(named=True)]
    live = opened(root)
    live.commit(edits)
    live.close()
    directory = compacted(root, calibrated=True)
    recall = calibration(directory).report["cross_fitted"]["recall_at_1"]
    assert recall == pytest.approx(recall_of_new(FaissGallery(directory)), abs=0.06)


def recall_of_new(gallery: FaissGallery) -> float:
    labels = np.tile(np.arange(N_LABELS), 100)
    rows = gallery.candidates(drawn(labels, 12).directions, 1).rows[:, 0]
    found = [gallery.labels[code] for code in gallery.label_codes(rows).tolist()]
    names = [f"label {label}" for label in labels.tolist()]
    return float(np.mean([one == name for one, name in zip(found, names, strict=True)]))


def picture_of(pixels: np.ndarray, side: int) -> Thumbnail:
    file = BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(file, "PNG")
    return Thumbnail(file.getvalue(), "image/png")


def test_too_few_queries_are_counted_and_nothing_is_published(root: Path) -> None:
    filled(root, put(np.arange(N_LABELS).repeat(3), 1))
    before = current_id(root)
    with pytest.raises(CalibrationError, match="42 items share their label with another photo"):
        calibrated(root)
    assert current_id(root) == before


def test_gallery_of_one_label_has_no_absent_queries(root: Path) -> None:
    filled(root, put(np.zeros(80, dtype=np.int64), 1))
    with pytest.raises(CalibrationError, match="the items have 1 labels"):
        calibrated(root)


def test_gallery_without_labels_is_told_to_have_some(root: Path) -> None:
    filled(root, [replace(one, item=replace(one.item, label=None)) for one in put(OF_ITEMS, 1)])
    with pytest.raises(CalibrationError, match="No item of the gallery has a label"):
        calibrated(root)


def test_decisions_are_refused_before_the_first_calibration(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Remove --decisions"):
        recalibrate_bundle(root, {}, tmp_path / "feedback.sqlite3")

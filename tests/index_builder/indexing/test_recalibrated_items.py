"""Galleries whose items are their calibration queries: fitted, and fitted again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.bundles.directory import current_id
from model_store.bundles.kept_queries import ItemFeatures
from model_store.gallery import Delete, FaissGallery, NewItem, Upsert
from model_store.retriever import Retriever
from tests.support.kept_worlds import (
    ENCODER,
    N_EACH,
    N_LABELS,
    N_NEW,
    OF_ITEMS,
    OF_QUERIES,
    PICTURE,
    asked,
    calibrated,
    calibration,
    compacted,
    drawn,
    opened,
    put,
)
from tests.support.narrowing import not_none

STRANGERS = N_LABELS + np.repeat(np.arange(N_NEW), 5)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A gallery calibrated by its items, and by a few queries of four withheld labels."""
    return calibrated(tmp_path, STRANGERS, by_items=True)


def test_items_are_all_queries_and_withheld_labels_add_to_hidden_ones(root: Path) -> None:
    fitted = calibration(root / str(current_id(root)))
    assert fitted.report["queries"] == "left_out_items"
    assert fitted.n_queries == fitted.report["n_matched"] == len(OF_ITEMS)
    assert fitted.report["n_absent"] == len(OF_ITEMS) + len(STRANGERS)
    absent = fitted.evidence.absent
    assert len(np.unique(fitted.evidence.clusters[absent])) == N_LABELS + N_NEW
    assert fitted.evidence.absence == "hidden_labels"
    gallery = FaissGallery(root / str(current_id(root)))
    verdicts = asked(gallery, fitted, drawn(OF_QUERIES, 11))
    assert verdicts.count("match") > 0.4 * len(OF_QUERIES)


def test_recall_of_left_out_items_is_that_of_new_queries(root: Path) -> None:
    fitted = calibration(root / str(current_id(root)))
    of_items = fitted.report["cross_fitted"]["recall_at_1"]
    gallery, labels = FaissGallery(root / str(current_id(root))), np.tile(np.arange(N_LABELS), 100)
    directions = drawn(labels, 12).directions
    codes = gallery.label_codes(gallery.candidates(directions, 1).rows[:, 0])
    names = [f"label {label}" for label in labels.tolist()]
    right = np.mean([gallery.labels[code] for code in codes.tolist()] == np.array(names))
    assert abs(of_items - right) < 0.06  # two standard errors of 168 items


def test_calibrated_again_without_a_change_gives_the_same(root: Path) -> None:
    before = calibration(root / str(current_id(root)))
    live = opened(root)
    live.commit(put(np.array([3]), 6))
    live.close()
    after = calibration(compacted(root, calibrated=True))
    assert after.report["n_matched"] == before.report["n_matched"]
    assert after.report["queries"] == "left_out_items"
    present = ~before.evidence.absent
    again = after.evidence.first_probabilities[~after.evidence.absent][: present.sum()]
    # The folds of cross-fitting are drawn again, since there is one query more.
    assert np.corrcoef(before.evidence.first_probabilities[present], again)[0, 1] > 0.97
    assert np.corrcoef(before.outlier_scores, after.outlier_scores[1:])[0, 1] > 0.98


def test_items_of_labels_that_have_gone_are_absent_queries(root: Path) -> None:
    live = opened(root)
    live.commit([Delete(f"item-{number:04d}") for number in range(2 * N_EACH)])
    live.close()
    after = calibration(compacted(root, calibrated=True))
    assert after.report["n_matched"] == (N_LABELS - 2) * N_EACH
    n_hidden = (N_LABELS - 2) * N_EACH
    assert after.report["n_absent"] == n_hidden + len(STRANGERS) + 2 * N_EACH


def test_label_that_loses_its_last_item_ends_guarantee_until_refit(root: Path) -> None:
    """Over the live gallery: kept queries of the label are absent queries of the refit."""
    before, queries = calibration(root / str(current_id(root))), drawn(np.repeat([5, 0], 20), 21)
    live = opened(root)
    gone = [Delete(f"item-{number:04d}") for number in range(N_EACH)]
    live.commit(gone[1:])
    almost = Retriever(ENCODER, live.snapshot(), before)
    assert (almost.n_gone_labels, almost.has_other_labels) == (0, False)
    live.commit(gone[:1])
    served = almost.with_gallery(live.snapshot())
    assert (served.n_gone_labels, served.has_other_labels) == (1, True)
    answers = {
        retriever: [retriever.find(one, 1).decision for one in retriever.predictives(queries)]
        for retriever in (almost, served)
    }
    assert served.stale is None
    promised = [
        {not_none(one.result_set).promised_for for one in answers[which]}
        for which in (almost, served)
    ]
    assert promised[0] != promised[1] == {()}, "of result sets, which so few labels do not limit"
    assert [one.verdict for one in answers[almost]][:20] == [
        one.verdict for one in answers[served]
    ][:20], "of what the label does not concern"
    reasons = {str(one.reason) for one in answers[served] if one.verdict == "match"}
    assert all("1 labels have lost their last item" in reason for reason in reasons)
    live.close()
    directory = compacted(root, calibrated=True)
    after = Retriever(ENCODER, FaissGallery(directory), calibration(directory))
    assert (after.n_gone_labels, after.not_guaranteed) == (0, None)
    assert after.calibration is not None
    assert after.calibration.report["n_absent"] == before.report["n_absent"]  # hidden, now absent
    assert after.calibration.report["n_matched"] == before.report["n_matched"] - N_EACH


def test_a_deleted_item_whose_label_stays_is_a_query_like_any_other(root: Path) -> None:
    live = opened(root)
    live.commit([Delete("item-0000"), Delete("item-0013")])
    live.close()
    after = calibration(compacted(root, calibrated=True))
    assert after.report["n_matched"] == len(OF_ITEMS)


def series(label: int, at: int, group: object, prefix: str) -> list[Upsert]:
    """Three pictures of one moment, which look like label ``at``."""
    one = put(np.array([at]), 31, prefix)[0]
    metadata = {} if group is None else {"group": group}
    return [
        replace(one, item=NewItem(f"{prefix}-{number}", f"label {label}", metadata, PICTURE))
        for number in range(3)
    ]


def right_after(root: Path, *writes: list[Upsert]) -> list[bool]:
    """Which of the added items find their label, once the gallery is calibrated again."""
    live = opened(root)
    for one in writes:
        live.commit(one)
    live.close()
    evidence = calibration(compacted(root, calibrated=True)).evidence
    return [bool(one) for one in evidence.correct[~evidence.absent][len(OF_ITEMS) :]]


@pytest.mark.parametrize(("group", "is_right"), [(None, True), ("dawn", False), (7, False)])
def test_pictures_of_an_added_series_do_not_find_each_other(
    root: Path, group: object, is_right: bool
) -> None:
    """As those of one `group` in a manifest; else a burst would promise what no visit keeps."""
    assert right_after(root, series(0, 5, group, "burst")) == [is_right] * 3


def test_a_series_without_another_one_of_its_label_is_no_query(root: Path) -> None:
    assert right_after(root, series(99, 5, "dawn", "burst")) == []


@pytest.mark.parametrize("group", ["", " ", None, True, 1.5, ["dawn"]])
def test_what_names_no_group_is_none(root: Path, group: object) -> None:
    assert right_after(root, series(0, 5, group, "burst")) == [True] * 3


def test_the_series_of_an_added_item_can_be_named_later(root: Path) -> None:
    assert right_after(root, series(0, 5, None, "burst")) == [True] * 3
    live = opened(root)
    writes = [live.snapshot().upsert(f"burst-{number}") for number in range(3)]
    live.close()
    named = [replace(one, item=replace(one.item, metadata={"group": "dawn"})) for one in writes]
    assert right_after(root, named) == [False] * 3


def test_an_added_picture_joins_the_series_of_an_item(root: Path) -> None:
    """Each item of this gallery is its own series, with its id as the name."""
    copy = put(np.array([5]), 31, "copy")[0]
    named = NewItem("copy", "label 5", {"group": "item-0000"}, PICTURE)
    live = opened(root)
    live.commit([replace(copy, item=named)])
    live.close()
    stored = ItemFeatures.load(compacted(root, calibrated=False))
    assert stored is not None
    group_of = dict(zip(stored.ids, stored.groups, strict=True))
    assert group_of["copy"] == group_of["item-0000"] != group_of["item-0001"]

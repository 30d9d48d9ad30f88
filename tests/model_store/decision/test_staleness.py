"""Changes of a gallery that its calibration outlives, and those that it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from model_store.decision.calibration import Calibration, n_gone_labels, search_settings, staleness
from model_store.gallery import Gallery
from model_store.search import N_CANDIDATES


def gallery(
    n_items: int = 100, n_changed: int = 0, index_type: str = "exact", *, is_local: bool = True
) -> Gallery:
    fields = {"n_items": n_items, "n_changed": n_changed, "index_type": index_type}
    return cast("Gallery", SimpleNamespace(**fields, is_local=is_local))


def calibrated(**fields: Any) -> Calibration:
    settings = search_settings(gallery(**fields))
    return cast("Calibration", SimpleNamespace(search=settings, outdated=None, within=None))


def test_what_a_calibration_depends_on_is_noted() -> None:
    assert search_settings(gallery(100, 3)) == {
        "index": "exact",
        "n_items": 100,
        "n_candidates": N_CANDIDATES,
        "n_changed": 3,
    }


@pytest.mark.parametrize(
    ("now", "is_stale"),
    [
        (gallery(), False),
        (gallery(index_type="IVF"), True),
        (gallery(105, 5), False),
        (gallery(90, 10), False),
        (gallery(89, 11), True),
        (gallery(100, 11), True),
        (gallery(106, 5), True),  # another gallery: so few changes do not make it
        (gallery(94, 5), True),
    ],
)
def test_few_changes_are_outlived_and_another_gallery_is_not(now: Gallery, is_stale: bool) -> None:
    assert (staleness(calibrated(), now) is not None) == is_stale


@pytest.mark.parametrize("now", [gallery(index_type="IVF"), gallery(100, 11)])
def test_a_stale_calibration_for_texts_needs_captions(now: Gallery) -> None:
    assert "calibrate BUNDLES --captions FILE`." in str(staleness(calibrated(), now, "text"))
    assert "--captions" not in str(staleness(calibrated(), now, "image"))


@pytest.mark.parametrize("now", [gallery(index_type="IVF"), gallery(100, 11)])
def test_a_stale_calibration_of_places_needs_queries(now: Gallery) -> None:
    of_places = cast("Calibration", SimpleNamespace(**(vars(calibrated()) | {"within": 25.0})))
    assert "calibrate BUNDLES --queries FILE`" in str(staleness(of_places, now))
    assert "--queries" not in str(staleness(calibrated(), now))


@pytest.mark.parametrize("changed", [{"n_changed": 11}, {"index_type": "IVF"}])
def test_advice_fits_the_place_of_the_gallery(changed: dict[str, Any]) -> None:
    in_files = staleness(calibrated(), gallery(**changed))
    in_database = staleness(calibrated(), gallery(**changed, is_local=False))
    assert "Run `vouch-build calibrate BUNDLES`" in str(in_files)
    assert "vouch-build calibrate" not in str(in_database)
    assert "build it again" in str(in_database)


def test_changes_before_the_calibration_do_not_count() -> None:
    assert staleness(calibrated(n_changed=50), gallery(100, 60)) is None
    assert staleness(calibrated(n_changed=50), gallery(100, 61)) is not None


def test_other_signals_are_another_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {
        "encoder_fingerprint": "e",
        "search": {},
        "n_queries": {},
        "assumed_absent": 0.5,
        "match": SimpleNamespace(presence=None),
    }
    fitted = cast("Calibration", SimpleNamespace(**fields))
    fingerprint = vars(Calibration)["match_fingerprint"].func
    before = fingerprint(fitted)
    assert fingerprint(fitted) == before
    monkeypatch.setattr("model_store.decision.calibration.SIGNALS", ("another",))
    assert fingerprint(fitted) != before


@pytest.mark.parametrize(("n_changed", "is_stale"), [(0, False), (10, False), (11, True)])
def test_a_calibration_that_knows_of_no_changes_had_none(n_changed: int, *, is_stale: bool) -> None:
    settings = {
        name: one for name, one in search_settings(gallery()).items() if name != "n_changed"
    }
    early = cast("Calibration", SimpleNamespace(search=settings, outdated=None, within=None))
    assert (staleness(early, gallery(100, n_changed)) is not None) == is_stale


@pytest.mark.parametrize(
    ("codes", "n_changed", "n_gone"),
    [
        ([0, 1, 2, 2], 0, 0),
        ([0, 2, 2, 3], 2, 1),  # 1 is gone, 3 came since
        ([2, 2], 3, 2),
        ([0, 2, 2], 0, 0),  # nothing has changed, so that nothing is read
        ([-1, 0, 2], 1, 1),  # an item without a label
    ],
)
def test_labels_without_an_item_are_counted_once_items_have_changed(
    codes: list[int], n_changed: int, n_gone: int
) -> None:
    fields = {
        "n_items": len(codes),
        "n_changed": n_changed,
        "labels": list("abcd"),
        "rows": lambda: np.arange(len(codes)),
        "label_codes": lambda rows: np.array(codes, dtype=np.int32)[rows],
    }
    calibration = SimpleNamespace(
        search=search_settings(gallery(4)),
        label_classes=np.array([0, 0, 1], dtype=np.int8),
        within=None,
    )
    found = n_gone_labels(
        cast("Calibration", calibration), cast("Gallery", SimpleNamespace(**fields))
    )
    assert found == n_gone


def test_gallery_without_any_label_has_lost_none() -> None:
    fields = {"n_items": 2, "n_changed": 1, "labels": ()}
    calibration = SimpleNamespace(
        search=search_settings(gallery(4)), label_classes=np.zeros(3, dtype=np.int8)
    )
    without = cast("Gallery", SimpleNamespace(**fields))
    assert n_gone_labels(cast("Calibration", calibration), without) == 0

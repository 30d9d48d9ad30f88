"""Changes of a gallery that its calibration outlives, and those that it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from model_store.decision.calibration import Calibration
from model_store.decision.staleness import search_settings, staleness
from model_store.gallery import Gallery
from model_store.search import N_CANDIDATES


def gallery(n_items: int = 100, n_changed: int = 0, index_type: str = "exact") -> Gallery:
    fields = {"n_items": n_items, "n_changed": n_changed, "index_type": index_type}
    return cast("Gallery", SimpleNamespace(**fields))


def calibrated(**fields: Any) -> Calibration:
    return cast("Calibration", SimpleNamespace(search=search_settings(gallery(**fields))))


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


def test_changes_before_the_calibration_do_not_count() -> None:
    assert staleness(calibrated(n_changed=50), gallery(100, 60)) is None
    assert staleness(calibrated(n_changed=50), gallery(100, 61)) is not None


def test_other_signals_are_another_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {
        "encoder_fingerprint": "e",
        "search": {},
        "n_queries": {},
        "assumed_absent": 0.5,
    }
    fitted = cast("Calibration", SimpleNamespace(**fields))
    before = Calibration.match_fingerprint(fitted)
    assert Calibration.match_fingerprint(fitted) == before
    monkeypatch.setattr("model_store.decision.calibration.SIGNALS", ("another",))
    assert Calibration.match_fingerprint(fitted) != before


@pytest.mark.parametrize(("n_changed", "is_stale"), [(0, False), (10, False), (11, True)])
def test_a_calibration_that_knows_of_no_changes_had_none(n_changed: int, *, is_stale: bool) -> None:
    settings = {
        name: one for name, one in search_settings(gallery()).items() if name != "n_changed"
    }
    early = cast("Calibration", SimpleNamespace(search=settings))
    assert (staleness(early, gallery(100, n_changed)) is not None) == is_stale

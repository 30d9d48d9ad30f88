"""Names, draws and counts of bundles: what just passes, and its neighbours that do not."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest

from model_store.bundles import item_features
from model_store.bundles.backup import BUNDLE_FOLDER, LOG_FILE, SUMMARY_FILE, _wanted
from model_store.bundles.item_features import ItemFeatures
from model_store.errors import ArchiveError
from model_store.half_precision import HalfRows


@pytest.mark.parametrize("name", [SUMMARY_FILE, LOG_FILE, f"{BUNDLE_FOLDER}/a"])
def test_member_of_a_backup_is_restored(name: str) -> None:
    member = tarfile.TarInfo(name)
    assert _wanted(member) is member


@pytest.mark.parametrize(
    "name",
    [
        f"x{SUMMARY_FILE}",
        f"{LOG_FILE}x",
        f"x{BUNDLE_FOLDER}/a",
        f"{BUNDLE_FOLDER}s/a",
        f"{BUNDLE_FOLDER}/../a",
        f"/{BUNDLE_FOLDER}/a",
    ],
)
def test_neighbour_of_a_member_is_refused(name: str) -> None:
    with pytest.raises(ArchiveError, match="which no backup of Vouch does"):
        _wanted(tarfile.TarInfo(name))


def test_thinned_sample_keeps_whole_groups_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 400
    monkeypatch.setattr(item_features, "MOST_ITEMS", 100)
    items = ItemFeatures(
        tuple(f"item-{i}" for i in range(n)),
        tuple(f"group-{i // 2}" for i in range(n)),
        HalfRows.of(np.zeros((n, 4), dtype=np.float32)),
        np.zeros(n, dtype=bool),
        share=0.5,
    )
    thinned = items.thinned()
    assert 60 <= len(thinned) <= 140
    assert thinned.share == 0.125
    assert all(thinned.groups.count(group) == 2 for group in set(thinned.groups))
    assert items.at(np.arange(100)).thinned().share == 0.5  # at the limit all are kept

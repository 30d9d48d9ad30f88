"""Rows that a search of a live gallery may find, against masks that are written out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.gallery.filters.selection import Allowed, MaskedRows
from model_store.gallery.live.snapshot import RowsOfAll, RowsOfBase

N_BASE, N_SINCE = 6, 4
Mask = NDArray[np.bool_]


def random_mask(seed: int, n: int) -> Mask:
    """Of some seeds empty, of some full."""
    return np.random.default_rng(seed).random(n) < (seed % 5) / 4


def assert_are(found: Allowed, wanted: Mask) -> None:
    """However they are asked for, they are the same."""
    rows = np.random.default_rng(0).permutation(len(wanted))
    np.testing.assert_array_equal(found.mask(), wanted)
    np.testing.assert_array_equal(found.rows(), np.flatnonzero(wanted))
    np.testing.assert_array_equal(found.at(rows), wanted[rows])
    assert found.at_most >= wanted.sum()
    assert not found.mask().flags.writeable


@pytest.mark.parametrize("seed", range(25))
def test_of_all_they_are_those_of_base_and_log_that_are_still_there(seed: int) -> None:
    of_base, since = random_mask(seed, N_BASE), random_mask(seed // 5, N_SINCE)
    removed = random_mask(seed + 3, N_BASE + N_SINCE)
    allowed = MaskedRows(of_base.copy(), {"label": "memory"})
    found = RowsOfAll(allowed, since, removed)
    assert_are(found, np.concatenate([of_base, since]) & ~removed)
    assert found.at_most == of_base.sum() + since.sum()
    assert found.share == pytest.approx((of_base.sum() + since.sum()) / 10)
    assert found.indexes == {"label": "memory"}


@pytest.mark.parametrize("seed", range(25))
def test_of_the_base_they_are_those_below_its_end(seed: int) -> None:
    everywhere, removed = random_mask(seed, N_BASE + N_SINCE), random_mask(seed // 5, N_BASE)
    there = int((~removed).sum())
    free = RowsOfBase(None, removed, int(removed.sum()), N_BASE + N_SINCE)
    assert_are(free, ~removed)
    assert (free.at_most, free.share, dict(free.indexes)) == (there, there / N_BASE, {})
    allowed = MaskedRows(everywhere.copy(), {"label": "memory"})
    found = RowsOfBase(allowed, removed, int(removed.sum()), N_BASE + N_SINCE)
    assert_are(found, everywhere[:N_BASE] & ~removed)
    assert found.at_most == min(there, everywhere.sum())
    assert found.share == pytest.approx(min(there, everywhere.sum()) / N_BASE)
    assert found.indexes == {"label": "memory"}


def test_of_no_rows_none_are_allowed() -> None:
    nothing = np.zeros(0, dtype=np.bool_)
    for found in (
        MaskedRows(nothing),
        RowsOfAll(MaskedRows(nothing), nothing, nothing),
        RowsOfBase(None, nothing, 0, 3),
    ):
        assert_are(found, nothing)
        assert found.share == 0

"""Weights of calibration queries, and the spread that the outlier detector takes for ordinary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from index_builder.calibration.detector import _whitening
from index_builder.calibration.fit import _weighted
from index_builder.calibration.queries import QueryGroup


def part(n: int, *, absent: bool) -> QueryGroup:
    observed: Any = range(n)
    return QueryGroup("withheld" if absent else "matched", observed)


@pytest.mark.parametrize("assumed", [0.05, 0.5, 0.8])
def test_absent_queries_weigh_their_share_of_a_stream(assumed: float) -> None:
    parts = [part(30, absent=False), part(10, absent=True), part(5, absent=True)]
    groups = _weighted(parts, assumed)
    of_absent = sum(len(one.observed) * one.weight for one in groups if one.absent)
    assert {one.weight for one in groups if not one.absent} == {1.0}
    assert of_absent / (of_absent + 30) == pytest.approx(assumed)


def test_the_spread_is_divided_by_what_the_means_have_left_free() -> None:
    deviations = np.random.default_rng(0).standard_normal((400, 3))
    inverse = []
    for degrees_of_freedom in (400, 100):
        lower = _whitening(deviations, degrees_of_freedom).astype(np.float64)
        inverse.append(lower @ lower.T)
    np.testing.assert_allclose(inverse[1], inverse[0] / 4, rtol=1e-5)

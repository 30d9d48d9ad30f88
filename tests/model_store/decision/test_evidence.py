"""Evidence of calibration queries: what it is made of, and how far they say the same."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from model_store.decision.evidence import design_effect
from tests.support.calibration_evidence import evidence


def test_arrays_of_several_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="wanted arrays of one length"):
        evidence(10, 10, sources=np.zeros(19, dtype=np.int16))


def test_without_levels_there_is_none_of_a_level() -> None:
    with pytest.raises(ValueError, match="no levels"):
        evidence(10, 10).of_level(0)


@pytest.mark.parametrize("seed", range(5))
def test_the_design_effect_is_of_an_analysis_of_variance_of_ranks(seed: int) -> None:
    """Most values are equal to others, whose ranks are then means."""
    generator = np.random.default_rng(seed)
    clusters = np.sort(generator.integers(0, 20, 100))
    values = np.round(generator.normal(size=20)[clusters] + generator.normal(size=100))
    ranks = [rankdata(values)[clusters == one] for one in np.unique(clusters)]
    sizes = np.array([len(one) for one in ranks])
    n, k = sizes.sum(), len(sizes)
    mean = np.concatenate(ranks).mean()
    between = sum(len(one) * (one.mean() - mean) ** 2 for one in ranks) / (k - 1)
    within = sum(((one - one.mean()) ** 2).sum() for one in ranks) / (n - k)
    typical = (n - (sizes**2).sum() / n) / (k - 1)
    correlation = max((between - within) / (between + (typical - 1) * within), 0.0)
    wanted = 1 + ((sizes**2).sum() / n - 1) * correlation
    assert design_effect(values, clusters) == pytest.approx(wanted, rel=1e-9)

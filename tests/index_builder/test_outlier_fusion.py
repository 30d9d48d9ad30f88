"""The outlier score is led by the signals that tell outliers apart, and by none alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.calibration.detector import MOST_LEVELS, cross_fitted_scores, fit_fusion
from index_builder.metrics import auroc
from model_store.decision import OutlierFusion

RNG = np.random.default_rng(0)

Floats = NDArray[np.float64]


def moved(values: Floats, *by: float) -> Floats:
    """Signals (N, S), each of them larger."""
    larger: Floats = values + np.array(by)
    return larger


def area(fitted: OutlierFusion, aliens: Floats, ordinary: Floats) -> float:
    """AUROC of the score."""
    found = auroc(fitted(aliens), fitted(ordinary))
    assert found is not None
    return found


def best_alone(aliens: Floats, ordinary: Floats) -> float:
    """AUROC of the best of the signals, known in hindsight."""
    return max(auroc(aliens[:, s], ordinary[:, s]) or 0.0 for s in range(aliens.shape[1]))


def weak_encoder(seed: int, *, lesson: bool) -> tuple[OutlierFusion, Floats, dict[str, Floats]]:
    """A fusion where features order nothing: corrupted queries look as near as any other.

    A lesson, if there is one, is of outliers that are far off: the opposite of those to come.
    """
    generator = np.random.default_rng(seed)
    inliers, fresh, spoilt, far, smooth, doubtful = generator.standard_normal((6, 400, 5))
    outliers = [moved(spoilt, 0.2, 0, 0.3, 0, 1.2)]
    if lesson:
        outliers.append(moved(far, 1.5, 1.5, 1, -1, -1))
    others = {
        "smooth": moved(smooth, -1, -1.5, -0.5, -1, 2.5),
        "doubtful": moved(doubtful, 0.4, 0.3, 0.3, 3, 0.2),
    }
    return fit_fusion(inliers, outliers), fresh, others


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lesson", [False, True])
def test_a_weak_encoder_does_not_lead_the_score_astray(seed: int, *, lesson: bool) -> None:
    """A fusion that trusts feature distances comes to 0.4 of 0.96, and 0.7 of 0.98."""
    fitted, fresh, others = weak_encoder(seed, lesson=lesson)
    for aliens in others.values():
        assert best_alone(aliens, fresh) - area(fitted, aliens, fresh) < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_a_lesson_that_does_not_serve_another_kind_is_not_learned(seed: int) -> None:
    without, with_lesson = (weak_encoder(seed, lesson=lesson)[0] for lesson in (False, True))
    np.testing.assert_array_equal(without.weights, with_lesson.weights)


def test_a_lesson_that_serves_another_kind_is_learned() -> None:
    inliers, spoilt, far = RNG.standard_normal((3, 400, 5))
    outliers = [moved(spoilt, 0.7, 0.7, 0.7, 0, 0), moved(far, 3, 3, 3, 0, 0)]
    taught, untaught = (
        fit_fusion(inliers, outliers).weights,
        fit_fusion(inliers, outliers[:1]).weights,
    )
    assert taught[:3].sum() > untaught[:3].sum() + 0.05


def test_a_strong_encoder_keeps_to_its_distances() -> None:
    """Outliers look certain, and their features are as long: those signals say the opposite."""
    inliers, fresh, spoilt, aliens = RNG.standard_normal((4, 400, 5))
    fitted = fit_fusion(inliers, [moved(spoilt, 2.5, 2.5, 2.5, -2, -0.5)])
    aliens = moved(aliens, 1.5, 2, 1, -2, -1)
    assert best_alone(aliens, fresh) - area(fitted, aliens, fresh) < 0.03


def test_signals_that_are_as_good_weigh_the_same() -> None:
    inliers, aliens = np.repeat(RNG.standard_normal((2, 500, 1)), 5, axis=2)
    np.testing.assert_allclose(fit_fusion(inliers, [aliens + 2]).weights, 0.2)


def test_weights_are_the_separation_and_a_share_of_what_is_left_open() -> None:
    inliers, aliens = RNG.standard_normal((2, 200, 5))
    aliens = moved(aliens, 1, 0.5, 0, -1, 2)
    wins = (aliens[:, None] > inliers[None]).mean(axis=(0, 1))
    losses = (aliens[:, None] < inliers[None]).mean(axis=(0, 1))
    expected = np.maximum(wins - losses, 0) + (1 - (wins - losses).max()) / 5
    weights = fit_fusion(inliers, [aliens]).weights
    np.testing.assert_allclose(weights, expected / expected.sum())


def test_a_signal_that_is_the_same_for_all_says_nothing() -> None:
    """A deterministic encoder has no variance: its queries are not thereby alien."""
    inliers, aliens = RNG.standard_normal((2, 300, 5))
    aliens = moved(aliens, 2, 0, 0, 0, 0)
    inliers[:, 3] = aliens[:, 3] = -27.6
    fitted = fit_fusion(inliers, [aliens])
    assert np.isfinite(fitted(inliers)).all()
    assert best_alone(aliens, inliers) - area(fitted, aliens, inliers) < 0.05


def test_many_queries_are_thinned_and_say_the_same() -> None:
    inliers, aliens = RNG.standard_normal((2, 6000, 5))
    whole, fitted = (
        fit_fusion(inliers[:MOST_LEVELS], [aliens + 1]),
        fit_fusion(inliers, [aliens + 1]),
    )
    assert whole.levels.shape == fitted.levels.shape == (5, MOST_LEVELS)
    p_values = (inliers[None, :, 0] >= aliens[:50, None, 0]).mean(axis=1)
    alone = OutlierFusion(np.eye(5)[0], fitted.levels, fitted.surprisals, fitted.tail_slopes)
    inside = p_values > 0.01
    np.testing.assert_allclose(np.exp(-alone(aliens[:50]))[inside], p_values[inside], rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_worlds"), [(100, 40), (1000, 10)])
@pytest.mark.parametrize("distance", [0.0, 1.0, 8.0])
def test_scores_of_several_fits_can_stand_beside_each_other(
    n: int, n_worlds: int, distance: float
) -> None:
    """P-values among cross-fitted scores are uniform, whatever outliers the fit has seen."""
    p_values = []
    for seed in range(n_worlds):
        generator = np.random.default_rng(seed)
        inliers, fresh = generator.standard_normal((2, n, 5))
        kinds = [generator.standard_normal((60, 5)) + distance for _ in range(2)]
        sources = np.arange(n + 120)
        scores = np.sort(cross_fitted_scores(inliers, kinds, sources, seed)[0])
        served = fit_fusion(inliers, kinds)(fresh)
        at_least = n - np.searchsorted(scores, served)
        p_values.append((1 + at_least) / (n + 1))
    every = np.concatenate(p_values)
    assert every.mean() == pytest.approx(0.5, abs=0.02)
    assert (every <= 0.1).mean() == pytest.approx(0.1, abs=0.02)
    assert (every <= 0.05).mean() == pytest.approx(0.05, abs=0.015)


def test_copies_of_a_picture_are_left_out_together() -> None:
    """A copy that says the opposite cannot be told from its twin unless the twin was seen."""
    values = RNG.standard_normal((400, 5))
    sources = np.r_[np.arange(400), np.arange(400)]
    inliers, (aliens,), _ = cross_fitted_scores(values, [values], sources, seed=0)
    np.testing.assert_allclose(inliers, aliens)


def test_a_lesson_is_learned_by_no_more_than_chance_where_it_gains_nothing() -> None:
    """The other kind looks like ordinary queries, so that no weights can tell it from them."""
    learned = 0
    for seed in range(200):
        inliers, spoilt, far = np.random.default_rng(seed).standard_normal((3, 60, 5))
        outliers = [spoilt, moved(far, 2, 1, 0, 0, 0)]
        alone, with_lesson = (fit_fusion(inliers, outliers[:n]).weights for n in (1, 2))
        learned += not np.array_equal(alone, with_lesson)
    # A normal gain is beyond its standard error with probability 0.16.
    assert learned / 200 == pytest.approx(0.16, abs=0.08)

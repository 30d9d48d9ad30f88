from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest

from index_builder.calibration import (
    fit_calibration,
    fit_detector,
    fit_logistic,
    operating_curve,
)
from index_builder.configuration import CalibrationConfig
from index_builder.metrics import auroc, expected_calibration_error
from index_builder.observation import Observed
from model_store.decision.outliers import unit_rows
from model_store.errors import CalibrationError

RNG = np.random.default_rng(0)


def world(n: int, seed: int, *, has_match: bool = True) -> Observed:
    """Queries whose lists agree the more, the likelier they are to be right."""
    generator = np.random.default_rng(seed)
    certainty = generator.uniform(0, 1, n)
    similarities = np.sort(generator.uniform(0.2, 0.6, (n, 60)) + 0.4 * certainty[:, None], axis=1)
    right = generator.uniform(size=(n, 60)) < (0.1 + 0.85 * certainty)[:, None]
    wrong_labels = generator.integers(1, 5, (n, 60))
    label_codes = np.where(right & has_match, 0, wrong_labels).astype(np.int32)
    return Observed(
        spherical_variances=1 - certainty / 2,
        outlier_distances=1 - certainty / 3 + generator.uniform(0, 0.3, n),
        similarities=similarities[:, ::-1].copy(),
        label_codes=label_codes,
        matches=label_codes == 0,
    )


DETECTOR = fit_detector(RNG.standard_normal((40, 12)).astype(np.float32), seed=0)


def calibrated(**changes: float):
    config = CalibrationConfig(**changes)
    return fit_calibration(
        DETECTOR, world(2000, 1), world(300, 2, has_match=False), None, "encoder", config, 0, {}
    )


def test_probabilities_are_true_on_queries_it_has_not_seen() -> None:
    fitted = calibrated(no_match_share=0.001)
    unseen = world(4000, 3)
    for rank in (0, 4, 9):
        probabilities = fitted.match(unseen.signals(np.array([rank]))[:, 0])
        assert expected_calibration_error(probabilities, unseen.matches[:, rank]) < 0.05
    first = fitted.match(unseen.signals(np.array([0]))[:, 0])
    right = unseen.matches[:, 0]
    area = auroc(first[right], first[~right])
    assert area is not None
    assert area > 0.75


def test_queries_without_a_match_are_told_apart() -> None:
    fitted = calibrated()
    values = [
        fitted.no_match(world(500, seed, has_match=has).signals(np.array([0]))[:, 0])
        for seed, has in ((4, False), (5, True))
    ]
    area = auroc(*values)
    assert area is not None
    assert area > 0.65


def test_more_queries_without_a_match_lower_every_probability() -> None:
    unseen = world(200, 6).signals(np.array([0]))[:, 0]
    few, many = calibrated(no_match_share=0.01), calibrated(no_match_share=0.5)
    assert many.match(unseen).mean() < few.match(unseen).mean() - 0.05


def test_outliers_teach_what_alien_images_look_like() -> None:
    """Aliens that land on a label as if they belonged: only their features give them away."""
    aliens = replace(world(600, 7), matches=np.zeros((600, 60), dtype=bool))
    aliens = replace(aliens, outlier_distances=aliens.outlier_distances + 3)
    parts = (DETECTOR, world(2000, 1), world(300, 2, has_match=False))
    config = CalibrationConfig()
    unseen = replace(aliens, outlier_distances=aliens.outlier_distances + 0.1)
    values = unseen.signals(np.array([0]))[:, 0]
    without = fit_calibration(*parts, None, "encoder", config, 0, {})
    with_aliens = fit_calibration(*parts, aliens, "encoder", config, 0, {})
    assert with_aliens.match(values).mean() < 0.5 * without.match(values).mean()
    assert with_aliens.report["n_outliers"] == 600
    assert with_aliens.report["cross_fitted"]["outlier_auroc"] == 1.0


def test_the_report_is_of_queries_left_out_of_the_fit() -> None:
    report = calibrated().report
    assert report["n_matched"] == 2000
    assert report["cross_fitted"]["top1_ece"] < 0.1
    assert 0 < report["cross_fitted"]["match_coverage"] < 1


@pytest.mark.parametrize(("n_matched", "n_no_match"), [(49, 300), (300, 49)])
def test_too_few_queries_are_refused(n_matched: int, n_no_match: int) -> None:
    with pytest.raises(CalibrationError, match=r"There are 49 .* at least 50"):
        fit_calibration(
            DETECTOR,
            world(n_matched, 0),
            world(n_no_match, 0, has_match=False),
            None,
            "encoder",
            CalibrationConfig(),
            0,
            {},
        )


def test_the_operating_point_keeps_its_promise_and_wastes_little() -> None:
    probabilities = RNG.uniform(0, 1, 3000)
    outcomes = RNG.uniform(size=3000) < probabilities
    weights = RNG.uniform(0.5, 2, 3000)
    curve = operating_curve(probabilities, outcomes, weights)
    point = curve.at(0.1)
    assert point is not None

    def error_and_coverage(value: float) -> tuple[float, float]:
        accepted = probabilities >= value
        error = np.average(~outcomes[accepted], weights=weights[accepted])
        return float(error), float(np.average(accepted, weights=weights))

    assert (point.error, point.coverage) == pytest.approx(error_and_coverage(point.threshold))
    assert point.error <= 0.1
    lower = probabilities[(probabilities < point.threshold) & (probabilities > 0.5)]
    best = max(
        c for e, c in map(error_and_coverage, lower) if e <= 0.1 or c < point.coverage + 0.01
    )
    assert best <= point.coverage + 0.01
    assert len(curve.thresholds) == 200
    assert curve.coverages[-1] == pytest.approx(1)
    assert (np.diff(curve.coverages) > 0).all()
    assert (np.diff(curve.thresholds) < 0).all()


def test_the_bound_is_the_exact_binomial_one_for_equal_weights() -> None:
    probabilities = np.repeat([0.9, 0.6], [40, 60])
    outcomes = np.ones(100, dtype=bool)
    outcomes[[0, 1, 50, 51, 52]] = False
    curve = operating_curve(probabilities, outcomes, np.ones(100))
    np.testing.assert_allclose(curve.coverages, [0.4, 1.0])
    np.testing.assert_allclose(curve.errors, [0.05, 0.05])
    for n, wrong, bound in zip((40, 100), (2, 5), curve.error_bounds, strict=True):
        exact = binomtest(wrong, n).proportion_ci(confidence_level=0.8, method="exact").high
        assert bound == pytest.approx(exact)


def test_a_match_is_never_unlikelier_than_not() -> None:
    curve = operating_curve(np.array([0.9, 0.3]), np.ones(2, bool), np.ones(2))
    point = curve.at(0.5)
    assert point is not None
    assert point.threshold == 0.9


def test_no_threshold_can_keep_an_impossible_promise() -> None:
    curve = operating_curve(np.array([0.9, 0.8]), np.zeros(2, bool), np.ones(2))
    assert curve.at(0.1) is None


def test_the_logistic_fit_finds_the_truth() -> None:
    values = RNG.standard_normal((20_000, 3)) * [1, 5, 0.1] + [0, 2, 1]
    truth = expit(values @ [1.0, -0.3, 4.0] + 0.5)
    outcomes = RNG.uniform(size=20_000) < truth
    fitted = fit_logistic(values, outcomes, np.ones(20_000))
    assert np.abs(fitted(values) - truth).mean() < 0.01


def test_with_one_outcome_only_the_logistic_fit_is_the_smoothed_rate() -> None:
    fitted = fit_logistic(np.zeros((8, 2)), np.ones(8, dtype=bool), np.ones(8))
    np.testing.assert_allclose(fitted(np.zeros((1, 2))), 9 / 10)


def test_the_detector_sees_what_lies_outside_the_gallery_and_inside_its_gaps() -> None:
    plane = np.linalg.qr(RNG.standard_normal((30, 3)))[0]
    angles = RNG.uniform(0.5, 2 * np.pi - 0.5, 400)  # a gap around 0
    circle = np.stack([np.cos(angles), np.sin(angles), np.full(400, 0.3)])
    features = (plane @ circle).T.astype(np.float32)
    fitted = fit_detector(features, seed=0)
    inside = fitted.distances(features[:50] * 2)
    gap = fitted.distances((plane @ [1.0, 0.0, 0.3])[None].astype(np.float32))
    outside = fitted.distances(unit_rows(RNG.standard_normal((50, 30)).astype(np.float32)))
    assert inside.max() < 0.01
    assert gap[0] > 0.2
    assert outside.min() > 0.5


def test_a_gallery_of_a_few_images_has_no_detector() -> None:
    with pytest.raises(CalibrationError, match="at least 20"):
        fit_detector(np.ones((19, 5), dtype=np.float32), seed=0)

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.calibration import (
    ASSUMED_ABSENT,
    CalibratedGallery,
    CalibrationQueries,
    Examples,
    QueryGroup,
    fit_calibration,
    fit_detector,
)
from index_builder.calibration.detector import fit_detectors
from index_builder.calibration.fit import series_share, signals_alone
from index_builder.calibration.retrieval import RetrievedQueries
from index_builder.configuration.build import CalibrationConfig
from index_builder.metrics import auroc, calibration_error, reliability
from model_store.decision import SIGNALS, Calibration, LabelMeans, choice_probabilities
from model_store.decision.calibration import DEFAULT_ABSENT
from model_store.decision.outliers import unit_rows
from model_store.decision.probabilities import prior_shift
from model_store.encoder.contract import Embeddings
from model_store.errors import CalibrationError
from model_store.gallery import Gallery
from tests.support.narrowing import not_none

RNG = np.random.default_rng(0)


def world(n: int, seed: int, *, has_match: bool = True) -> RetrievedQueries:
    """Queries whose lists agree the more, the likelier they are to be right."""
    generator = np.random.default_rng(seed)
    certainty = generator.uniform(0, 1, n)
    similarities = np.sort(generator.uniform(0.2, 0.6, (n, 60)) + 0.4 * certainty[:, None], axis=1)
    right = generator.uniform(size=(n, 60)) < (0.1 + 0.85 * certainty)[:, None]
    wrong_labels = generator.integers(1, 5, (n, 60))
    label_codes = np.where(right & has_match, 0, wrong_labels).astype(np.int32)
    means = generator.uniform(0, 1, (n, 5))
    means[:, 0] += certainty  # the mean of what a query shows is the nearer, the surer it is
    return RetrievedQueries(
        spherical_variances=1 - certainty / 2,
        similarity_stds=1 - certainty / 2,
        outlier_scores=1 - certainty / 3 + generator.uniform(0, 0.3, n),
        similarities=similarities[:, ::-1].copy(),
        label_codes=label_codes,
        mean_similarities=means[np.arange(n)[:, None], label_codes],
        matches=label_codes == 0,
        codes=np.where(has_match, np.arange(n) % 5, -2 - np.arange(n) % 20).astype(np.int32),
        own_sizes=np.full(n, 20 * has_match),
        found_sizes=np.full((n, 60), 20),
    )


def gallery_embeddings(features: NDArray[Any]) -> Embeddings:
    """Embeddings with these features (N, F) and whatever mean."""
    mean = RNG.standard_normal((len(features), 4)).astype(np.float32)
    return Embeddings(mean, mean**2, features.astype(np.float32))


DETECTOR = fit_detector(
    gallery_embeddings(RNG.standard_normal((40, 12))), np.zeros(40, dtype=np.int32)
)

MEANS = LabelMeans(np.eye(5, 4, dtype=np.float32))


def queries_of(matched: RetrievedQueries, *absent: QueryGroup) -> CalibrationQueries:
    return CalibrationQueries([QueryGroup("matched", matched, np.arange(len(matched))), *absent])


WITHHELD = QueryGroup("withheld", world(300, 2, has_match=False))
QUERIES = queries_of(world(2000, 1), WITHHELD)


class Hundred:
    """A gallery of five labels of twenty items; it is not searched."""

    labels, index_type, n_items, n_changed = "abcde", "flat", 100, 0

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        return (rows % 5).astype(np.int32)


GALLERY = CalibratedGallery("encoder", cast("Gallery", Hundred()), DETECTOR, MEANS, 60)


def calibrated(queries: CalibrationQueries = QUERIES, **changes: Any) -> Calibration:
    return fit_calibration(GALLERY, queries, CalibrationConfig(**changes), 0, {})


def choices(
    fitted: Calibration, observed: RetrievedQueries, share: float | None = None
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Places of the labels that each query finds, and their match probabilities."""
    shift = prior_shift(fitted.assumed_absent, share or fitted.default_share)
    found = []
    for row in range(len(observed)):
        places, values = observed.signals(row)
        found.append((places, choice_probabilities(fitted.match.log_odds(values) + shift)))
    return found


def of_first(fitted: Calibration, observed: RetrievedQueries) -> NDArray[np.float64]:
    """Match probability of the first items, (B,)."""
    return np.array([probabilities[0] for _, probabilities in choices(fitted, observed)])


@pytest.mark.slow
def test_probabilities_are_true_on_queries_it_has_not_seen() -> None:
    fitted = calibrated(expected_absent=0.001)
    unseen = world(4000, 3)
    found = choices(fitted, unseen)
    for label in range(3):  # the nearest, and the next
        pairs = [(p[label], row, at[label]) for row, (at, p) in enumerate(found) if len(at) > label]
        probabilities, rows, places = map(np.array, zip(*pairs, strict=True))
        assert calibration_error(reliability(probabilities, unseen.matches[rows, places])) < 0.05
    first = of_first(fitted, unseen)
    right = unseen.matches[:, 0]
    area = auroc(first[right], first[~right])
    assert area is not None
    assert area > 0.75


@pytest.mark.slow
def test_queries_without_a_match_are_told_apart() -> None:
    fitted = calibrated()
    values = [
        [1 - p.sum() for _, p in choices(fitted, world(500, seed, has_match=has))]
        for seed, has in ((4, False), (5, True))
    ]
    area = auroc(*map(np.array, values))
    assert area is not None
    assert area > 0.65


@pytest.mark.slow
def test_more_queries_without_a_match_lower_every_probability() -> None:
    few, many = calibrated(expected_absent=0.01), calibrated(expected_absent=0.5)
    unseen = world(200, 6)
    assert of_first(many, unseen).mean() < of_first(few, unseen).mean() - 0.05


def test_a_gallery_of_one_image_a_label_is_measured_around_one_mean() -> None:
    gallery = gallery_embeddings(RNG.standard_normal((60, 12)))
    fitted = fit_detector(gallery, np.arange(60, dtype=np.int32))
    assert len(fitted.label_means) == 1
    assert np.isfinite(fitted.signals(gallery)).all()


@pytest.mark.slow
def test_the_p_value_is_valid_for_ordinary_queries() -> None:
    fitted = calibrated()
    scores = world(4000, 11).outlier_scores
    p_values = np.array([fitted.outlier_p_value(score) for score in scores])
    for alpha in (0.01, 0.05, 0.1, 0.5):
        assert abs((p_values <= alpha).mean() - alpha) < 4 * (alpha / 1000) ** 0.5


@pytest.mark.slow
def test_queries_that_hide_their_label_say_little_where_the_encoder_knows_it() -> None:
    hidden = replace(world(2000, 1, has_match=False), codes=np.arange(2000, dtype=np.int32) % 20)
    queries = replace(queries_of(QUERIES.matched, QueryGroup("hidden", hidden)), unseen=True)
    fitted = calibrated(queries)
    assert set(fitted.report["cross_fitted"]["outlier_auroc"]) == {"near"}
    assert fitted.evidence.absence == "hidden_labels"
    assert fitted.evidence.rivals == 5 / 4
    assert fitted.assumed_absent == ASSUMED_ABSENT
    trained = calibrated(replace(queries, unseen=False))  # a stand-in that says little
    assert trained.evidence.absence == "hidden_trained_labels"
    assert trained.assumed_absent == DEFAULT_ABSENT
    assert trained.promises().unknown_absence is not None
    assert trained.promises().point.false_match_rate is None
    assert trained.report["signals"] == list(SIGNALS[:4])
    assert (trained.match.weights[4:] == 0).all(), "of others these say nothing"


def test_calibration_prints_the_signals_with_what_each_tells_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = calibrated().report
    alone = report["signals_alone"]
    assert list(alone) == report["signals"]
    matched, absent = QUERIES.matched, WITHHELD.observed
    of_first = -matched.similarities[:, 0]
    right = matched.matches[:, 0]
    assert alone["log_distance"] == {
        "error_auroc": pytest.approx(auroc(of_first[~right], of_first[right])),
        "absent_auroc": pytest.approx(auroc(-absent.similarities[:, 0], of_first)),
    }
    assert alone["outlier_score"]["absent_auroc"] == pytest.approx(
        auroc(absent.outlier_scores, matched.outlier_scores)
    )
    values = [one for of_signal in alone.values() for one in of_signal.values()]
    assert min(values) > 0.5, "the sign of each is that of certainty or of doubt"
    first = alone["log_distance"]
    shown = f"log distance {first['error_auroc']:.2f} and {first['absent_auroc']:.2f}"
    assert shown in capsys.readouterr().err


def test_a_signal_tells_as_much_if_its_sign_is_reversed() -> None:
    examples = Examples.of([*QUERIES.of("matched"), WITHHELD])
    reverse = replace(examples, values=-examples.values)
    assert signals_alone(reverse, 6) == {
        name: {key: pytest.approx(area) for key, area in of_signal.items()}
        for name, of_signal in signals_alone(examples, 6).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_result_sets_hold_a_match_as_often_as_promised(coverage: float) -> None:
    fitted = calibrated()
    unseen = world(3000, 12)
    hits, sizes = [], []
    found = choices(fitted, unseen, fitted.assumed_absent)  # no share changes a set
    for row, (places, probabilities) in enumerate(found):
        classes = fitted.classes_of(unseen.label_codes[row, places])
        chosen = fitted.promises().sets.choose(places, probabilities, classes, coverage)
        assert chosen.shortfall is None
        hits.append(unseen.matches[row, chosen.places].any())
        sizes.append(len(chosen.places))
    exists = unseen.matches.any(axis=1)
    assert np.mean(np.array(hits)[exists]) > coverage - 0.02
    assert np.mean(hits) < coverage + 0.05
    outcomes = {one["coverage"]: one for one in fitted.report["cross_fitted"]["result_sets"]}
    assert outcomes[coverage]["covered"] == pytest.approx(np.mean(hits), abs=0.03)
    assert outcomes[coverage]["mean_size"] == pytest.approx(np.mean(sizes), abs=0.1)
    assert 1 <= outcomes[0.8]["mean_size"] < outcomes[0.95]["mean_size"] < 5


@pytest.mark.slow
def test_the_report_is_of_queries_left_out_of_the_fit() -> None:
    report = calibrated().report
    assert report["n_matched"] == 2000
    assert report["cross_fitted"]["top1_ece"] < 0.1
    assert 0 < report["cross_fitted"]["match_coverage"] < 1


@pytest.mark.slow
def test_the_evidence_of_the_likeliest_is_of_lists_by_probability() -> None:
    """As often right as the likeliest labels of queries that the fit has not seen."""
    fitted, unseen = calibrated(), world(4000, 3)
    found = choices(fitted, unseen, fitted.assumed_absent)
    best = [(places[p.argmax()], p.max()) for places, p in found]
    places, told = map(np.array, zip(*best, strict=True))
    right = unseen.matches[np.arange(len(unseen)), places]
    evidence = fitted.evidence
    present = ~evidence.absent
    of_likeliest = fitted.report["cross_fitted"]["orders"]["probability"]
    recall = evidence.likeliest_correct[present].mean()
    assert recall == of_likeliest["recall_at_1"] == pytest.approx(right.mean(), abs=0.03)
    assert recall > evidence.correct[present].mean() + 0.05
    assert evidence.likeliest_probabilities[present].mean() == pytest.approx(told.mean(), abs=0.03)
    assert (evidence.likeliest_probabilities >= evidence.first_probabilities).all()
    agree = evidence.likeliest_probabilities == evidence.first_probabilities
    np.testing.assert_array_equal(evidence.likeliest_correct[agree], evidence.correct[agree])
    assert (evidence.likeliest_classes == 2).all()
    assert of_likeliest["match_coverage"] > fitted.report["cross_fitted"]["match_coverage"]
    assert calibrated(order="probability").report["cross_fitted"]["top1_ece"] == pytest.approx(
        of_likeliest["top1_ece"]
    )


@pytest.mark.parametrize(("n_matched", "n_no_match"), [(49, 300), (300, 49)])
def test_too_few_queries_are_refused(n_matched: int, n_no_match: int) -> None:
    withheld = QueryGroup("withheld", world(n_no_match, 0, has_match=False))
    queries = queries_of(world(n_matched, 0), withheld)
    with pytest.raises(CalibrationError, match=r"There are 49 .* at least 50"):
        calibrated(queries)


@pytest.mark.slow
def test_gallery_images_help_probabilities_and_leave_p_values_alone() -> None:
    """Sixty held-out queries teach little; eight hundred images left out of their lists, more."""
    few = queries_of(world(60, 21), WITHHELD)
    more = QueryGroup("items", world(800, 23), np.arange(60, 860))
    unseen = world(2000, 25)
    fits = [calibrated(few), calibrated(replace(few, groups=[*few.groups, more]))]
    briers = [np.mean((of_first(one, unseen) - unseen.matches[:, 0]) ** 2) for one in fits]
    assert briers[1] < 1.01 * briers[0]
    np.testing.assert_array_equal(fits[0].outlier_scores, fits[1].outlier_scores)
    stds = [not_none(fit.similarity_stds) for fit in fits]
    np.testing.assert_array_equal(stds[0], stds[1])
    assert [fitted.report["n_leave_one_out"] for fitted in fits] == [0, 800]
    assert [int((~fitted.evidence.absent).sum()) for fitted in fits] == [60, 860]
    promises = [fitted.promises().sets for fitted in fits]
    assert promises[0].shortfall(0.99) is not None  # needs 230 queries
    assert promises[1].shortfall(0.99) is None


def test_the_detector_sees_what_lies_outside_the_gallery_and_inside_its_gaps() -> None:
    plane = np.linalg.qr(RNG.standard_normal((30, 3)))[0]
    angles = RNG.uniform(0.5, 2 * np.pi - 0.5, 400)  # a gap around 0
    circle = np.stack([np.cos(angles), np.sin(angles), np.full(400, 0.3)])
    features = (plane @ circle).T
    gallery = gallery_embeddings(features)
    fitted = fit_detector(gallery, np.zeros(400, dtype=np.int32))

    def distances(asked: NDArray[Any]) -> NDArray[np.float64]:
        return np.exp(fitted.signals(gallery_embeddings(asked))[:, 0])

    assert distances(features[:50] * 2).max() < 0.01
    assert distances((plane @ [1.0, 0.0, 0.3])[None])[0] > 0.2
    assert distances(RNG.standard_normal((50, 30))).min() > 0.5


@pytest.mark.parametrize("shape", [(200, 30), (40, 90)])
def test_the_detector_s_subspace_and_covariance_are_those_of_scikit_learn(
    shape: tuple[int, int],
) -> None:
    from sklearn.covariance import ledoit_wolf
    from sklearn.decomposition import PCA

    spread = np.geomspace(5, 0.1, shape[1])
    features = (1 + RNG.standard_normal(shape) * spread).astype(np.float32)
    codes = np.arange(len(features)) % 2
    fitted = fit_detector(gallery_embeddings(features), codes)
    rank = fitted.basis.shape[1]
    rows = unit_rows(features)
    pca = PCA(rank, svd_solver="full").fit(rows)
    np.testing.assert_allclose(fitted.centre, pca.mean_, atol=1e-6)
    np.testing.assert_allclose(abs(fitted.basis.T @ pca.components_.T), np.eye(rank), atol=5e-3)
    coordinates = (rows - fitted.centre) @ fitted.basis
    np.testing.assert_allclose(fitted.basis.T @ fitted.basis, np.eye(rank), atol=1e-5)
    deviations = coordinates - fitted.label_means[codes]
    covariance, shrinkage = ledoit_wolf(deviations, assume_centered=True)
    assert 0.01 < shrinkage < 0.99
    covariance *= len(rows) / (len(rows) - 2)
    inverse = fitted.whitening @ fitted.whitening.T
    np.testing.assert_allclose(inverse @ covariance, np.eye(rank), atol=1e-3)


@pytest.mark.parametrize("shape", [(200, 90), (80, 120)])
def test_detectors_of_subsets_equal_fits_to_these_images_alone(shape: tuple[int, int]) -> None:
    spread = np.geomspace(5, 0.1, shape[1])
    gallery = gallery_embeddings(1 + RNG.standard_normal(shape) * spread)
    new = gallery_embeddings(1 + RNG.standard_normal((50, shape[1])) * spread)
    codes = RNG.integers(0, 4, shape[0])
    subsets = [np.flatnonzero(RNG.uniform(size=shape[0]) < share) for share in (0.95, 0.7, 1)]
    for subset, fitted in zip(subsets, fit_detectors(gallery, codes, subsets), strict=True):
        alone = fit_detector(gallery.at(subset), codes[subset])
        np.testing.assert_allclose(fitted.signals(new), alone.signals(new), atol=1e-3)
        np.testing.assert_allclose(fitted.centre, alone.centre, atol=1e-6)
        np.testing.assert_allclose(fitted.residual_variance, alone.residual_variance, rtol=1e-3)
        np.testing.assert_array_equal(fitted.directions, alone.directions)
    with pytest.raises(CalibrationError, match="has 19 images"):
        list(fit_detectors(gallery, codes, [np.arange(19)]))


def test_of_copies_of_a_few_images_the_detector_is_finite() -> None:
    features = np.repeat(RNG.standard_normal((3, 50)), 20, axis=0)
    fitted = fit_detector(gallery_embeddings(features), np.zeros(60, dtype=np.int32))
    np.testing.assert_allclose(fitted.basis.T @ fitted.basis, np.eye(30), atol=1e-5)
    signals = fitted.signals(gallery_embeddings(RNG.standard_normal((9, 50))))
    assert np.isfinite(signals).all()


def test_mahalanobis_is_whitened_within_labels() -> None:
    """Ordinary images are as far from their label's mean in every direction."""
    codes = np.arange(6000) % 3
    centres, spread = 3 * RNG.standard_normal((3, 8)), np.diag([0.3, 0.2, 0.1, 0.3] * 2)
    features = 10 + centres[codes] + RNG.standard_normal((6000, 8)) @ spread
    fitted = fit_detector(gallery_embeddings(features), codes.astype(np.int32))
    rows = unit_rows(features.astype(np.float32))
    whitened = (rows - fitted.centre) @ fitted.basis @ fitted.whitening
    deviations = whitened - (fitted.label_means @ fitted.whitening)[codes]
    spreads = np.linalg.eigvalsh(np.cov(deviations.T))
    np.testing.assert_allclose(spreads[1:], 1, atol=0.05)  # the first is that of the length


def test_of_many_features_adjacent_ones_are_averaged() -> None:
    features = RNG.standard_normal((40, 6000))
    fitted = fit_detector(gallery_embeddings(features), np.zeros(40, dtype=np.int32))
    assert (fitted.n_averaged, fitted.centre.shape) == (3, (2000,))
    assert np.isfinite(fitted.signals(gallery_embeddings(features))).all()


def test_a_label_of_few_images_is_compared_with_wherever_it_stands() -> None:
    codes = np.repeat([0, 1], [1500, 4]).astype(np.int32)
    features = np.where(codes[:, None] == 0, [3.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0])
    features = features + 0.3 * RNG.standard_normal((len(codes), 4))
    gallery = gallery_embeddings(features)
    fitted = fit_detector(gallery, codes)
    assert len(fitted.references) == 500
    assert np.exp(fitted.signals(gallery.at(np.flatnonzero(codes == 1)))[:, 0]).max() < 0.01


@pytest.mark.parametrize("length", [0, 1])
def test_equal_features_of_a_label_have_finite_signals(length: int) -> None:
    codes, drawn = np.repeat(np.arange(4, dtype=np.int32), 10), np.random.default_rng(0)
    gallery = gallery_embeddings((length * drawn.standard_normal((4, 6)))[codes])
    others = gallery_embeddings(drawn.standard_normal((5, 6)))
    signals = fit_detector(gallery, codes).signals(others)
    assert np.isfinite(signals).all()


def test_a_gallery_of_a_few_images_has_no_detector() -> None:
    with pytest.raises(CalibrationError, match="at least 20"):
        fit_detector(gallery_embeddings(np.ones((19, 5))), np.zeros(19, dtype=np.int32))


def images_of_labels(n_in_series: int, n_labels: int = 4) -> RetrievedQueries:
    """Each of 240 images is a query; it does not find itself.

    A photograph is the direction of its label with much noise; a series repeats it with little.
    """
    generator, n = np.random.default_rng(7), 240
    codes = (np.arange(n) // n_in_series % n_labels).astype(np.int32)
    scenes = generator.standard_normal((n // n_in_series, 32)).repeat(n_in_series, axis=0)
    noise = 0.3 * (n_in_series > 1) * generator.standard_normal((n, 32))
    images = generator.standard_normal((n_labels, 32))[codes] + scenes + noise
    directions = unit_rows(images.astype(np.float32))
    similarities = directions.astype(np.float64) @ directions.T
    np.fill_diagonal(similarities, -2)
    order = np.argsort(-similarities, axis=1)[:, :60]
    return replace(
        world(n, 0),
        similarities=np.take_along_axis(similarities, order, axis=1),
        label_codes=codes[order],
        codes=codes,
    )


@pytest.mark.parametrize(("n_in_series", "least", "most"), [(1, 0, 0.03), (2, 0.8, 1), (5, 0.8, 1)])
def test_share_of_images_in_series_is_found(n_in_series: int, least: float, most: float) -> None:
    found = images_of_labels(n_in_series)
    queries = replace(queries_of(found, WITHHELD), origin="left_out_items")
    assert least <= not_none(series_share(queries)) <= most
    assert calibrated(queries).report["series_share"] == series_share(queries)
    few = replace(found.first(1), codes=found.codes)  # too few results of a label
    assert series_share(replace(queries_of(few, WITHHELD), origin="left_out_items")) is None


@pytest.mark.parametrize(("n_in_series", "least", "most"), [(1, 0, 0.1), (2, 0.7, 1), (3, 0.7, 1)])
def test_series_of_rare_individuals_are_found(n_in_series: int, least: float, most: float) -> None:
    """Six photographs of each individual, in two or three bursts."""
    found = images_of_labels(n_in_series, n_labels=40)
    queries = replace(queries_of(found, WITHHELD), origin="left_out_items")
    assert least <= not_none(series_share(queries)) <= most


def test_queries_of_users_are_no_series() -> None:
    assert series_share(queries_of(images_of_labels(5), WITHHELD)) is None

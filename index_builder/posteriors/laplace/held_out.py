"""Choose the prior and the temperature of a posterior on images that were not fitted.

The labels form four folds. For each fold, a posterior is fitted without the labels of the fold. If
the last layer has a closed form, the last layer is also fitted again for each fold. Images of the
fold's labels are absent queries. Of the other labels, images that were held out of the fit are
queries with a match. The uncertainty of a query is the standard deviation of its similarity to the
nearest item. Two AUROCs measure how well this uncertainty detects wrong first results and absent
queries. The score of a prior is the sum of the two AUROCs. The temperature hardly changes the
AUROCs, so they cannot choose the temperature. The score of a temperature therefore measures how
well sampled neighbours predict the label of a query (see `vote_log_likelihood`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from index_builder.arrays import Array, affine, to_numpy, unit
from index_builder.metrics import auroc
from index_builder.posteriors.laplace.fit import PriorSearch
from model_store.predictive import Correlation

from .fit import LaplaceFit, LaplacePosterior
from .kronecker import KroneckerCurvature
from .kronecker_posterior import KroneckerPosterior


class Predicts(Protocol):
    """A posterior: a map from features to the mean and variance of the embedding."""

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""


Criterion = Callable[[Predicts], float]
"""A measure of the quality of a posterior; larger is better."""


def temper_by_validation(
    fit: LaplaceFit, candidates: Sequence[float], criterion: Callable[[LaplacePosterior], float]
) -> LaplaceFit:
    """Return the fit at the candidate temperature for which the criterion is largest.

    Parameters
    ----------
    candidates : temperatures to try.
    criterion : measures the quality of a posterior, on data that are used neither for training nor
        for the evaluation.

    If several temperatures are equally good, the largest of these temperatures is chosen. If the
    best temperature is the smallest or largest candidate, the temperature is 1; see
    `PriorSearch.is_identified`.
    """
    if not candidates:
        raise ValueError("no candidates")
    candidates = sorted(candidates, reverse=True)
    values = [criterion(fit.tempered(value).posterior) for value in candidates]
    return fit.tempered_by(PriorSearch(tuple(candidates), tuple(values)))


def norm_correlation(posterior: LaplacePosterior, features: Array) -> float | None:
    """Return the correlation of two log uncertainties: under the posterior, and under the prior.

    The uncertainty of an image is Σ_d v_d / ‖m‖². If the weights have their prior distribution,
    this uncertainty is proportional to ‖φ‖² / ‖m‖². None if one of the two uncertainties is the
    same for all images.

    Parameters
    ----------
    posterior : the posterior to compare.
    features : (N, F) features of images.
    """
    mean, variance = (to_numpy(one).astype(np.float64) for one in posterior.predict(features))
    squared_norm = (mean**2).sum(axis=1)
    uncertainty = np.log(variance.sum(axis=1) / squared_norm)
    length = np.log((to_numpy(features).astype(np.float64) ** 2).sum(axis=1) / squared_norm)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = float(np.corrcoef(uncertainty, length)[0, 1])
    return correlation if math.isfinite(correlation) else None


N_SAMPLES = 50

N_NEAREST, N_OTHERS = 100, 400
"""Number of candidates of a query: nearest items and random items. If a label has hundreds of
images, nearly all of the nearest items have the same label. Without random items, a posterior that
is too wide would get as many correct votes as a posterior with the right width."""


def vote_log_likelihood(
    posterior: Predicts,
    queries: Array,
    query_labels: NDArray[np.int64],
    gallery: Array,
    gallery_labels: NDArray[np.int64],
    seed: int,
) -> Criterion:
    """Return a criterion: the mean log-probability of the true label, estimated by sampled votes.

    Each predictive sample of a query votes for the label of its nearest candidate. The probability
    of the true label is its share of the votes, after adding one vote for the label and one vote
    against the label (Laplace's rule). The criterion is a proper scoring rule: it is largest if the
    spread of the samples fits the frequency of errors. If the posterior is too wide, the votes are
    random. If the posterior is too narrow, all samples vote for one label, even if this label is
    wrong. An area under a ROC curve cannot choose the temperature, because the area does not depend
    on the scale of the uncertainties.

    Parameters
    ----------
    posterior : the posterior whose mean finds the candidates.
    queries : (Q, F) features of images not used in training.
    query_labels : (Q,) int64.
    gallery : (M, F) features of gallery images.
    gallery_labels : (M,) int64.
    seed : seed of the noise; every posterior gets the same noise.
    """
    generator = np.random.default_rng(seed)
    directions = unit(to_numpy(posterior.predict(gallery)[0]))
    similarities = to_numpy(posterior.predict(queries)[0]) @ directions.T
    n_nearest = min(N_NEAREST, len(gallery))
    nearest = np.argpartition(-similarities, n_nearest - 1, axis=1)[:, :n_nearest]
    others = generator.permutation(len(gallery))[:N_OTHERS]
    candidates = np.concatenate([nearest, np.tile(others, (len(queries), 1))], axis=1)
    is_right = gallery_labels[candidates] == query_labels[:, None]
    noise = generator.standard_normal((N_SAMPLES, directions.shape[1])).astype(directions.dtype)

    def criterion(candidate: Predicts) -> float:
        mean, variance = (to_numpy(one) for one in candidate.predict(queries))
        deviation = np.sqrt(variance)
        total = 0.0
        for row, (centre, std) in enumerate(zip(mean, deviation, strict=True)):
            # Normalising a sample does not change its nearest candidate.
            votes = ((centre + std * noise) @ directions[candidates[row]].T).argmax(axis=1)
            total += math.log((is_right[row, votes].sum() + 1) / (N_SAMPLES + 2))
        return total / len(queries)

    return criterion


FRACTIONS = {"kronecker": (30.0, 3.0, 0.3, 0.03), "diagonal": (0.01, 0.1, 1.0, 0.001)}
"""Candidate prior precisions, relative to the mean curvature, in order of preference."""

LEAST_GAIN = 0.01
"""A prior is good enough if its sum of AUROCs is at most this value below the largest sum.
Validation chooses the first prior, in order of preference, that is good enough. The value is about
one standard error on five data sets."""

SPREADS = np.logspace(2, -4, 13)
"""Candidate spreads in descending order. A spread is the median of Σ_d v_d / ‖m‖² over the queries;
each spread gives one candidate temperature."""

TYPICAL_SPREAD = 0.3
"""Priors are compared at the same spread: the temperature of each prior is set to give this spread.
On five data sets, the posteriors had spreads of 0.2 to 1.4 at the temperatures that
`vote_log_likelihood` chose."""

N_FOLDS = 4

MIN_LABELS = 6
"""If there are fewer labels than this number, no fold leaves out labels."""

MIN_IMAGES = 3
"""The images of a label can be queries if the label has at least this number of images: one query,
and two images for a positive pair. A fold is skipped if its gallery has fewer images than this
number."""

MIN_QUERIES = 30

N_IMAGES = 1000
"""Maximum number of training images in the folds. The number of validation images has the same
maximum."""

N_NEIGHBOURS, LEAST_SPREAD = 10, 1e-6
"""For the fit of the pair correlation: the number of nearest items that are used for each query,
and the minimum spread of a column relative to the other column."""

N_QUERIES = 400
"""Maximum number of queries in a fold."""

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Codes = NDArray[np.int64]

Vectors = NDArray[np.floating]

FitFold = Callable[[Rows], tuple[LaplaceFit, Vectors, Vectors]]
"""Function that fits a posterior to rows of a gallery. It returns the fit, and the weight (D, F)
and bias (D,) of the last layer."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The outcome of a validation.

    Attributes
    ----------
    fraction : chosen prior precision, divided by the mean curvature.
    prior : candidate fractions, and the score of each: the sum of two AUROCs.
    temperature : candidate temperatures, and the score of each: the mean log-probability of a
        query's true label.
    wrong_auroc : AUROC of the chosen prior for detecting wrong first results; None if all first
        results are right, or all are wrong.
    absent_auroc : AUROC of the chosen prior for detecting absent queries; None if there are no
        absent queries.
    n_queries : number of queries with a match.
    n_wrong : number of queries with a match whose first result is wrong.
    n_absent : number of absent queries.
    pair_correlation : see `fit_correlation`; None for a diagonal posterior.
    """

    fraction: float
    prior: PriorSearch
    temperature: PriorSearch
    wrong_auroc: float | None
    absent_auroc: float | None
    n_queries: int
    n_wrong: int
    n_absent: int
    pair_correlation: Correlation | None


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows of the gallery, of the queries with a match, and of the absent queries."""

    gallery: Rows
    known: Rows
    absent: Rows


def some_of_each(labels: Codes, n_labels: int, seed: int) -> Rows:
    """Return the rows of at most `N_IMAGES` images, with a limited number of images of each label.

    Parameters
    ----------
    labels : (N,) codes below ``n_labels``; the chosen labels depend on the seed only.
    """
    generator = np.random.default_rng(seed)
    turn = generator.permutation(n_labels)[labels]
    order = generator.permutation(len(labels))
    order = order[np.argsort(turn[order], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(turn[order]) != 0])
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    most = max(2 * N_FOLDS, N_IMAGES // max(n_labels, 1))
    return np.sort(order[place < most][:N_IMAGES])


def folds_of(
    labels: Codes, may_ask: NDArray[np.bool_], seed: int, *, divided: bool
) -> Iterator[Fold]:
    """Yield the folds of N images.

    Parameters
    ----------
    labels : (N,).
    may_ask : (N,) whether the image can be a query.
    divided : whether the queries of one fold are gallery images in the other folds. If False, no
        gallery contains an image that can be a query.
    """
    generator = np.random.default_rng(seed)
    names = np.unique(labels)
    of_label = dict(zip(generator.permutation(names).tolist(), range(len(names)), strict=True))
    label_fold = np.array([of_label[label] for label in labels.tolist()]) % N_FOLDS
    if len(names) < MIN_LABELS:
        label_fold[:] = -1
    order = generator.permutation(len(labels))
    image_fold = np.empty(len(labels), dtype=np.int64)
    for name in names:
        rows = order[labels[order] == name]
        image_fold[rows] = (np.arange(len(rows)) + of_label[int(name)]) % N_FOLDS
    for fold in range(N_FOLDS):
        left_out = label_fold == fold
        asks = may_ask & ~left_out
        if divided:
            asks &= image_fold == fold
        kept = ~left_out & (~asks if divided else ~may_ask)
        known, absent = (
            np.sort(generator.permutation(np.flatnonzero(some))[:N_QUERIES])
            for some in (asks, may_ask & left_out)
        )
        yield Fold(np.flatnonzero(kept), known, absent)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The queries of a fold with their nearest items; absent queries are last.

    Attributes
    ----------
    fit : the fit at temperature 1.
    mean : (Q, D) embeddings of the queries.
    directions : (M, D) unit embeddings of the gallery.
    asked : (Q, F) features of the queries.
    found : (M, F) features of the gallery.
    nearest : (Q,) gallery row of the nearest item.
    similarities : (Q,) similarity to the nearest item.
    is_right : (n, M) whether query and item have the same label; n queries have a match.
    """

    fit: LaplaceFit
    mean: Vectors
    directions: Vectors
    asked: Vectors
    found: Vectors
    nearest: Rows
    similarities: Vectors
    is_right: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        fold: Fold,
        features: Vectors,
        labels: Codes,
        layer: tuple[LaplaceFit, Vectors, Vectors],
    ) -> _Asked:
        fit, weight, bias = layer
        asked = features[np.concatenate([fold.known, fold.absent])]
        found = features[fold.gallery]
        mean = affine(asked, weight, bias)
        directions = unit(affine(found, weight, bias))
        all_similarities = unit(mean) @ directions.T
        nearest, similarities = all_similarities.argmax(axis=1), all_similarities.max(axis=1)
        is_right = labels[fold.known][:, None] == labels[fold.gallery]
        return cls(fit, mean, directions, asked, found, nearest, similarities, is_right)

    @property
    def is_wrong(self) -> NDArray[np.bool_]:
        """Whether the first result is wrong, (n,), for each query with a match."""
        n = len(self.is_right)
        wrong: NDArray[np.bool_] = ~self.is_right[np.arange(n), self.nearest[:n]]
        return wrong

    def variances(self, fractions: Sequence[float]) -> list[tuple[Vectors, Vectors]]:
        """Return the relative variances of the queries and of their nearest items, for each prior.

        The relative variance of a query is v / ‖m‖² (Q, D). The relative variance of an item is Σ_d
        v_d / ‖m‖² (Q,).
        """
        curvature = self.fit.curvature * self.fit.data_scale
        priors = [fraction * curvature.mean for fraction in fractions]
        layer = self.fit.posterior.weight_mean, self.fit.posterior.bias_mean
        nearest, place = np.unique(self.nearest, return_inverse=True)
        items = self.found[nearest]
        both = np.concatenate([self.asked, items])
        if isinstance(curvature, KroneckerCurvature):
            variances = curvature.predictive_variances(both, priors)
        else:
            variances = [curvature.posterior(*layer, one).predict(both)[1] for one in priors]
        of_queries = (self.mean**2).sum(axis=1, keepdims=True)
        of_items = (affine(items, *layer) ** 2).sum(axis=1)
        n = len(self.asked)
        return [
            (one[:n] / of_queries, (one[n:].sum(axis=1) / of_items)[place]) for one in variances
        ]

    def pairs(self, fraction: float) -> Vectors | None:
        """Return `correlated_pairs` of the queries with a match, for one prior."""
        curvature = self.fit.curvature * self.fit.data_scale
        layer = self.fit.posterior.weight_mean, self.fit.posterior.bias_mean
        posterior = curvature.posterior(*layer, fraction * curvature.mean)
        if not isinstance(posterior, KroneckerPosterior):
            return None
        return correlated_pairs(posterior, self.asked[: len(self.is_right)], self.found)

    def votes(self, variance: Vectors, temperatures: Sequence[float], seed: int) -> Rows:
        """Return how many of `N_SAMPLES` samples vote for the query's true label, (T, n).

        The inner products of the noise and the gallery's embeddings are computed only once, and are
        then scaled for each temperature.
        """
        n = len(self.is_right)
        directions = unit(self.mean[:n])
        drawn = np.random.default_rng(seed).standard_normal((N_SAMPLES, directions.shape[1]))
        noise = drawn.astype(directions.dtype)
        moved = (np.sqrt(variance[:n, None]) * noise) @ self.directions.T
        means = (directions @ self.directions.T)[:, None]
        votes = np.empty((len(temperatures), n), dtype=np.int64)
        sample = np.empty_like(moved)
        for row, temperature in enumerate(temperatures):
            np.multiply(moved, moved.dtype.type(np.sqrt(temperature)), out=sample)
            np.add(sample, means, out=sample)
            right = np.take_along_axis(self.is_right, sample.argmax(axis=-1), axis=1)
            votes[row] = right.sum(axis=1)
        return votes


def correlated_pairs(posterior: KroneckerPosterior, queries: Vectors, items: Vectors) -> Vectors:
    """Return s, s / √(t_q t_i) and r of pairs, (P, 3); see `model_store.predictive.Correlation`.

    The total variances t are divided by the typical total variance of the items, so pairs of
    several posteriors can be compared.

    Parameters
    ----------
    queries, items : (Q, F), (M, F) features. A pair is a query and one of its `N_NEIGHBOURS`
        nearest items.
    """
    n, both = len(queries), np.concatenate([queries, items])
    products = posterior.products(both).astype(np.float64)
    means = unit(posterior.predict(both)[0].astype(np.float64))
    similarities = means[:n] @ means[n:].T
    deviations = np.sqrt(products.diagonal())
    correlations = products[:n, n:] / (deviations[:n, None] * deviations[n:])
    total = total_variances(posterior, both)
    roots = np.sqrt(total / np.median(total[n:]))
    nearest = np.argsort(-similarities, axis=1)[:, :N_NEIGHBOURS]
    columns = similarities, similarities / (roots[:n, None] * roots[n:]), correlations
    return np.stack(
        [np.take_along_axis(column, nearest, axis=1).ravel() for column in columns], axis=1
    )


def fit_correlation(pairs: Vectors) -> Correlation:
    """Fit r to ``pairs`` (P, 3) by least squares; see `correlated_pairs`.

    The third coefficient is in units of the items' typical total variance.
    """
    known, r = pairs[:, :2], pairs[:, 2]
    apart = known - known.mean(axis=0)
    # A column that hardly varies gets the coefficient 0.
    slopes = np.linalg.lstsq(apart, r - r.mean(), rcond=LEAST_SPREAD)[0]
    return Correlation(float(r.mean() - known.mean(axis=0) @ slopes), *slopes.tolist())


def total_variances(posterior: KroneckerPosterior, features: Vectors) -> Floats:
    """Return Σ_d v_d / ‖m‖² (B,) of the embeddings of ``features`` (B, F)."""
    mean, variance = posterior.predict(features)
    return np.asarray(variance.sum(axis=1) / (mean**2).sum(axis=1), dtype=np.float64)


def pair_std(
    queries: Vectors, variances: Vectors, items: Vectors, totals: Vectors, similarities: Vectors
) -> Vectors:
    """Return `model_store.predictive.Pairs.first_order` (Q,) of Q pairs; r is the similarity.

    Parameters
    ----------
    queries, items : (Q, D), unit vectors.
    variances : (Q, D), variances of the queries around their unit vectors.
    totals : (Q,), Σ_d v_d of the items.
    similarities : (Q,).
    """
    total = variances.sum(axis=1)
    ratios, r = np.sqrt(totals / total), np.clip(similarities, 0, 1)
    along, back = 1 - r * ratios * similarities, r * ratios - similarities
    moved = along[:, None] * items + back[:, None] * queries
    across = queries - similarities[:, None] * items
    shared, alone = ((variances * part**2).sum(axis=1) for part in (moved, across))
    first = shared + (1 - r**2) * ratios**2 * alone
    found: Vectors = np.sqrt(first / ((1 + total) * (1 + totals)))
    return found


def validate(
    features: Vectors,
    labels: Codes,
    may_ask: NDArray[np.bool_],
    fit_fold: FitFold,
    fractions: Sequence[float],
    seed: int,
    *,
    divided: bool,
) -> HeldOut | None:
    """Choose a prior and a temperature; return None if there are too few queries.

    Parameters
    ----------
    features : (N, F) of images.
    labels : (N,).
    may_ask, divided : see `folds_of`.
    fit_fold : fits a posterior to the images of a fold's gallery.
    fractions : candidate prior precisions, divided by the mean curvature, in order of preference.
    """
    asked = [
        _Asked.of(fold, features, labels, fit_fold(fold.gallery))
        for fold in folds_of(labels, may_ask, seed, divided=divided)
        if len(fold.known) and len(fold.gallery) >= MIN_IMAGES
    ]
    wrong = np.concatenate([one.is_wrong for one in asked]) if asked else np.empty(0, dtype=bool)
    if len(wrong) < MIN_QUERIES:
        return None
    is_known = np.concatenate([np.arange(len(one.mean)) < len(one.is_right) for one in asked])
    values, found = [], []
    for variances in zip(*(one.variances(fractions) for one in asked), strict=True):
        spreads = np.concatenate([of_queries.sum(axis=1) for of_queries, _ in variances])
        spread = float(np.median(spreads))
        uncertainty = np.concatenate(
            [
                _uncertainty(one, of_pairs, TYPICAL_SPREAD / spread)
                for one, of_pairs in zip(asked, variances, strict=True)
            ]
        )
        of_known = uncertainty[is_known]
        duties = (
            auroc(of_known[wrong], of_known[~wrong]),
            auroc(uncertainty[~is_known], of_known),
        )
        values.append(sum(duty for duty in duties if duty is not None))
        found.append((variances, spread, duties))
    chosen = next(place for place, one in enumerate(values) if one >= max(values) - LEAST_GAIN)
    variances, spread, duties = found[chosen]
    temperatures = (SPREADS / spread).tolist()
    votes = np.concatenate(
        [
            one.votes(of_queries, temperatures, seed)
            for one, (of_queries, _) in zip(asked, variances, strict=True)
        ],
        axis=1,
    )
    scores = np.log((votes + 1) / (N_SAMPLES + 2)).mean(axis=1)
    return HeldOut(
        fractions[chosen],
        PriorSearch(tuple(fractions), tuple(values)),
        PriorSearch(tuple(temperatures), tuple(scores.tolist())),
        *duties,
        len(wrong),
        int(wrong.sum()),
        int((~is_known).sum()),
        _correlation(asked, fractions[chosen]),
    )


def _correlation(asked: Sequence[_Asked], fraction: float) -> Correlation | None:
    """Return `fit_correlation` of the pairs of all folds, for one prior."""
    pairs = [found for one in asked if (found := one.pairs(fraction)) is not None]
    return fit_correlation(np.concatenate(pairs)) if pairs else None


def _uncertainty(asked: _Asked, variances: tuple[Vectors, Vectors], scale: float) -> Floats:
    """Return `pair_std` (Q,) of queries and nearest items; ``scale`` multiplies the variances."""
    of_queries, totals = variances
    return pair_std(
        unit(asked.mean),
        scale * of_queries,
        asked.directions[asked.nearest],
        scale * totals,
        asked.similarities,
    ).astype(np.float64)

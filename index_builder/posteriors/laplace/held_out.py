"""Prior and temperature judged by what a posterior is for, on labels and images held out of it.

Of four folds of the labels, one at a time is left out of the posterior, and of its last layer where
that is a closed form. Its images are queries of absent kinds; held-out images of the other labels
are queries with a match. The standard deviation of the similarity to the nearest item has two
duties: to tell wrong first results from right ones, and absent kinds from known ones. A prior is
judged by the sum of both AUROCs; a temperature, which moves neither much, by how well sampled
neighbours predict the label of a query (see `votes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from index_builder.metrics import auroc
from index_builder.posteriors.laplace.fit import LaplaceFit
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.laplace.prior import PriorSearch
from index_builder.posteriors.laplace.votes import N_SAMPLES

FRACTIONS = {"kronecker": (30.0, 3.0, 0.3, 0.03), "diagonal": (0.01, 0.1, 1.0, 0.001)}
"""Prior precisions to try, over the mean curvature, in the order of preference."""

LEAST_GAIN = 0.01
"""In the sum of two AUROCs, from which another prior is better. On five data sets a standard error
is about as large."""

SPREADS = np.logspace(2, -4, 13)
"""Temperatures to try, as the median of Σ_d v_d / ‖m‖² over queries; the widest first."""

TYPICAL_SPREAD = 0.3
"""That priors are compared at. On five data sets, votes choose 0.2 to 1.4."""

N_FOLDS = 4

MIN_LABELS = 6
"""Minimum number of labels for leaving out a fold."""

MIN_IMAGES = 3
"""Images of a label that leave a positive pair when one is a query."""

MIN_QUERIES = 30

N_IMAGES = 1000
"""Images that folds are made of, and as many that no posterior is fitted to."""

N_NEIGHBOURS, LEAST_SPREAD = 10, 1e-6
"""Neighbours of an image that it makes pairs with; and the least variance of their similarities."""

N_QUERIES = 400
"""Queries of a fold, at most."""

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Codes = NDArray[np.int64]

FitFold = Callable[[Rows], tuple[LaplaceFit, Tensor, Tensor]]
"""From the rows of a gallery to a posterior, and weight (D, F) and bias (D,) of the layer."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The outcome of a validation.

    Attributes
    ----------
    fraction : of the mean curvature that the prior precision is.
    prior : fractions, and the sum of the AUROCs of both duties.
    temperature : temperatures, and the mean log-probability of a query's own label.
    wrong_auroc, absent_auroc : of the prior that was chosen; None without queries to tell apart.
    n_queries, n_wrong, n_absent : with a match, of these with a wrong first result, and without.
    pair_correlation : see `pair_correlation`; None of a posterior without one.
    """

    fraction: float
    prior: PriorSearch
    temperature: PriorSearch
    wrong_auroc: float | None
    absent_auroc: float | None
    n_queries: int
    n_wrong: int
    n_absent: int
    pair_correlation: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows of a gallery, of queries whose label it holds, and of queries whose label it lacks."""

    gallery: Rows
    known: Rows
    absent: Rows


def some_of_each(labels: Codes, n_labels: int, seed: int) -> Rows:
    """Return rows of at most `N_IMAGES` images: of some labels, as many as folds have use of.

    Parameters
    ----------
    labels : (N,) codes below ``n_labels``; the same labels are taken of any images.
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
    """Give the folds of N images.

    Parameters
    ----------
    labels : (N,).
    may_ask : (N,) whether an image may be a query.
    divided : whether queries are gallery images of other folds; else no query is in any gallery.
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
    """The queries of a fold, those without a match last, each with its nearest item.

    Attributes
    ----------
    fit : without a temperature.
    mean, directions : (Q, D) of the queries, and (M, D) unit ones of the gallery.
    asked, found : (Q, F) features, and (M, F).
    nearest : (Q,) row of the gallery.
    similarities : (Q,) to it.
    is_right : (n, M) whether an item has the label of each query with a match.
    """

    fit: LaplaceFit
    mean: Tensor
    directions: Tensor
    asked: Tensor
    found: Tensor
    nearest: Tensor
    similarities: Tensor
    is_right: Tensor

    @classmethod
    def of(
        cls, fold: Fold, features: Tensor, labels: Tensor, layer: tuple[LaplaceFit, Tensor, Tensor]
    ) -> _Asked:
        fit, weight, bias = layer
        asked = features[torch.from_numpy(np.concatenate([fold.known, fold.absent]))]
        found = features[torch.from_numpy(fold.gallery)]
        mean = torch.addmm(bias, asked, weight.T)
        directions = functional.normalize(torch.addmm(bias, found, weight.T))
        similarities, nearest = (functional.normalize(mean) @ directions.T).max(1)
        is_right = labels[fold.known][:, None] == labels[fold.gallery]
        return cls(fit, mean, directions, asked, found, nearest, similarities, is_right)

    @property
    def is_wrong(self) -> NDArray[np.bool_]:
        """The error indicator of the first result of each query with a match, (n,)."""
        n = len(self.is_right)
        right = self.is_right[torch.arange(n), self.nearest[:n]]
        return ~np.asarray(right.numpy(), dtype=bool)

    def variances(self, fractions: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
        """Return, for each prior, v / ‖m‖² (Q, D) of queries and Σ_d v_d / ‖m‖² (Q,) of items."""
        curvature = self.fit.curvature * self.fit.data_scale
        priors = [fraction * curvature.mean for fraction in fractions]
        layer = self.fit.posterior.weight_mean, self.fit.posterior.bias_mean
        nearest, place = self.nearest.unique(return_inverse=True)
        items = self.found[nearest]
        both = torch.cat([self.asked, items])
        if isinstance(curvature, KroneckerCurvature):
            variances = curvature.predictive_variances(both, priors)
        else:
            variances = [curvature.posterior(*layer, one).predict(both)[1] for one in priors]
        of_queries = self.mean.square().sum(1, keepdim=True)
        of_items = torch.addmm(layer[1], items, layer[0].T).square().sum(1)
        n = len(self.asked)
        return [(one[:n] / of_queries, (one[n:].sum(1) / of_items)[place]) for one in variances]

    def correlation(self, fraction: float) -> tuple[float, float] | None:
        """Return `pair_correlation` of the queries with a match, under a prior."""
        curvature = self.fit.curvature * self.fit.data_scale
        layer = self.fit.posterior.weight_mean, self.fit.posterior.bias_mean
        posterior = curvature.posterior(*layer, fraction * curvature.mean)
        if not isinstance(posterior, KroneckerPosterior):
            return None
        return pair_correlation(posterior, self.asked[: len(self.is_right)], self.found)

    def votes(self, variance: Tensor, temperatures: Sequence[float], seed: int) -> Tensor:
        """Return the votes (T, n) of `N_SAMPLES` for a query's own label.

        The noise of a sample is compared with the gallery once; a temperature scales it.
        """
        n = len(self.is_right)
        directions = functional.normalize(self.mean[:n])
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(N_SAMPLES, directions.shape[1], generator=generator)
        moved = (variance[:n, None].sqrt() * noise) @ self.directions.T
        means = (directions @ self.directions.T)[:, None]
        nearest = torch.stack([(means + math.sqrt(one) * moved).argmax(-1) for one in temperatures])
        return self.is_right.expand(len(temperatures), -1, -1).gather(2, nearest).sum(2)


def pair_correlation(
    posterior: KroneckerPosterior, queries: Tensor, items: Tensor
) -> tuple[float, float]:
    """Return a and b of r ≈ a + b s, see `model_store.pairs`, by least squares.

    Parameters
    ----------
    queries, items : (Q, F), (M, F) features; each query makes pairs with its nearest items.
    """
    n, both = len(queries), torch.cat([queries, items])
    products = posterior.products(both).double().numpy()
    means = functional.normalize(posterior.predict(both)[0].double()).numpy()
    similarities = means[:n] @ means[n:].T
    deviations = np.sqrt(products.diagonal())
    correlations = products[:n, n:] / (deviations[:n, None] * deviations[n:])
    nearest = np.argsort(-similarities, axis=1)[:, :N_NEIGHBOURS]
    similarity = np.take_along_axis(similarities, nearest, axis=1).ravel()
    correlation = np.take_along_axis(correlations, nearest, axis=1).ravel()
    slope = np.cov(similarity, correlation)[0, 1] / max(float(similarity.var()), LEAST_SPREAD)
    return float(correlation.mean() - slope * similarity.mean()), float(slope)


def pair_std(
    queries: Tensor, variances: Tensor, items: Tensor, totals: Tensor, similarities: Tensor
) -> Tensor:
    """Return `model_store.pairs.Pairs.first_order` (Q,) of Q pairs, where r is the similarity.

    Parameters
    ----------
    queries, items : (Q, D), unit.
    variances : (Q, D) of the queries, of draws around a unit vector.
    totals : (Q,) Σ_d v_d of the items.
    similarities : (Q,).
    """
    total = variances.sum(1)
    ratios, r = (totals / total).sqrt(), similarities.clamp(0, 1)
    along, back = 1 - r * ratios * similarities, r * ratios - similarities
    moved = along[:, None] * items + back[:, None] * queries
    across = queries - similarities[:, None] * items
    shared, alone = ((variances * part.square()).sum(1) for part in (moved, across))
    first = shared + (1 - r.square()) * ratios.square() * alone
    return (first / ((1 + total) * (1 + totals))).sqrt()


@torch.no_grad()
def validate(
    features: Tensor,
    labels: Codes,
    may_ask: NDArray[np.bool_],
    fit_fold: FitFold,
    fractions: Sequence[float],
    seed: int,
    *,
    divided: bool,
) -> HeldOut | None:
    """Choose a prior and a temperature; None where there are too few queries.

    Parameters
    ----------
    features : (N, F) of images.
    labels : (N,).
    may_ask, divided : see `folds_of`.
    fit_fold : fits a posterior to some of the images.
    fractions : prior precisions over the mean curvature, in the order of preference.
    """
    of_images = torch.from_numpy(labels)
    asked = [
        _Asked.of(fold, features, of_images, fit_fold(fold.gallery))
        for fold in folds_of(labels, may_ask, seed, divided=divided)
        if len(fold.known) and len(fold.gallery) >= MIN_IMAGES
    ]
    wrong = np.concatenate([one.is_wrong for one in asked]) if asked else np.empty(0, dtype=bool)
    if len(wrong) < MIN_QUERIES:
        return None
    is_known = np.concatenate([np.arange(len(one.mean)) < len(one.is_right) for one in asked])
    values, found = [], []
    for variances in zip(*(one.variances(fractions) for one in asked), strict=True):
        spread = float(torch.cat([of_queries.sum(1) for of_queries, _ in variances]).median())
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
    votes = torch.cat(
        [
            one.votes(of_queries, temperatures, seed)
            for one, (of_queries, _) in zip(asked, variances, strict=True)
        ],
        1,
    )
    scores = ((votes + 1) / (N_SAMPLES + 2)).log().mean(1)
    return HeldOut(
        fractions[chosen],
        PriorSearch(tuple(fractions), tuple(values)),
        PriorSearch(tuple(temperatures), tuple(scores.tolist())),
        *duties,
        len(wrong),
        int(wrong.sum()),
        int((~is_known).sum()),
        asked[0].correlation(fractions[chosen]),
    )


def _uncertainty(asked: _Asked, variances: tuple[Tensor, Tensor], scale: float) -> Floats:
    """Return `pair_std` (Q,) of queries and their nearest items, with variances times ``scale``."""
    of_queries, totals = variances
    found: Floats = (
        pair_std(
            functional.normalize(asked.mean),
            scale * of_queries,
            asked.directions[asked.nearest],
            scale * totals,
            asked.similarities,
        )
        .double()
        .numpy()
    )
    return found

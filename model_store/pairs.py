"""The uncertainty of a similarity in closed form: query and item are both uncertain.

One posterior over the last layer moves both embeddings of a pair, and it moves them together. For a
query a ~ N(û, diag v) and an item b ~ N(ĝ, λ² diag v) on the unit sphere, whose errors have the
correlation r in every dimension, the cosine s is to first order (the delta method)

    s + E·δ + ε,  E = (1 − rλs) ĝ + (rλ − s) û,  δ ~ N(0, diag v),
                  ε ~ N(0, (1 − r²) λ² Σ_d v_d (û − s ĝ)_d²)

because ∂s/∂a = ĝ − s û and ∂s/∂b = û − s ĝ. The same E and ε of all items give the probability of
a rank. The nearest published form is ProbCosine of BayesVLM (Baumann et al. 2026).

What is kept of an item is its mean and its total variance, so two things are taken from the query.
An item's variance has the profile of the query's over dimensions, which is exact for a
Kronecker-factored posterior: there a variance is a number of the image times a number of the
dimension. And r is the cosine s itself in place of that of the features under the posterior, which
would take as many numbers an item as there are features.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from model_store.predictive import Predictive

OF_WEIGHTS = ("laplace", "online_laplace", "mc_dropout", "ensemble")
"""Beginnings of the names of distributions over weights. These move all embeddings together; any
other distribution is one of single images, whose errors are independent."""

_NOTHING = np.finfo(np.float32).tiny
"""A variance of which any lead at all is certain: similarities have eight decimals."""

Floats = NDArray[np.float64]


def moves_both(posterior: str) -> bool:
    """Return whether a distribution of that name is one over the weights of the encoder."""
    return posterior.startswith(OF_WEIGHTS)


@dataclass(frozen=True, slots=True)
class Pairs:
    """A query and n items.

    Attributes
    ----------
    similarities : s (n,).
    std : (n,) standard deviation of the cosine; 0 where nothing is uncertain.
    mean : (n,) of the cosine, to second order: uncertainty makes a pair less similar.
    pull : rλ (n,), how far an item moves with the query.
    own : (n,) variance of ε, the part of an item's error that is its own.
    """

    similarities: Floats
    std: Floats
    mean: Floats
    pull: Floats
    own: Floats

    @classmethod
    def of(
        cls,
        query: Predictive,
        items: NDArray[np.float32],
        similarities: Floats,
        total_variances: NDArray[np.float32],
        correlations: Floats,
    ) -> Pairs:
        """Return the moments of the similarities of a query to n items.

        Parameters
        ----------
        items : ĝ (n, D), unit.
        similarities : (n,) of ``items`` to the query's direction.
        total_variances : (n,), see `Gallery.total_variances`.
        correlations : r (n,) in [0, 1]; 0 where the errors of two images are independent.
        """
        v, s = query.variance.astype(np.float64), similarities
        direction = query.direction.astype(np.float64)
        total = v.sum()
        ratio = np.sqrt(total_variances / max(total, _NOTHING)) if total else np.zeros(len(s))
        of_items = np.square(items) @ query.variance
        of_both = items @ (query.variance * query.direction)
        of_query = float(v @ np.square(direction))
        pull = correlations * ratio
        along, back = 1 - pull * s, pull - s
        shared = along**2 * of_items + 2 * along * back * of_both + back**2 * of_query
        across = of_query - 2 * s * of_both + s**2 * of_items
        own = np.maximum((1 - correlations**2) * ratio**2 * across, 0)
        bent = -2 * of_both - s * total
        mean = s + 0.5 * (bent + 3 * s * of_query + ratio**2 * (bent + 3 * s * of_items))
        mean += pull * (total - of_query - of_items + s * of_both)
        return cls(s, np.sqrt(np.maximum(shared, 0) + own), mean, pull, own)

    def at(self, places: NDArray[np.int64]) -> Pairs:
        """Return some of the pairs."""
        return Pairs(*(getattr(self, field.name)[places] for field in fields(self)))

    def sampled(
        self, query: Predictive, items: NDArray[np.float32], noise: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return products (S, n) by which each of the query's S samples ranks the items.

        They are the similarities times the length of the sample, which is the same for all items.

        Parameters
        ----------
        noise : (S, m) standard normal, m ≥ n: of the items' own errors, by place.
        """
        s = self.similarities.astype(np.float32)
        products = query.samples @ items.T
        along = (query.samples @ query.direction)[:, None]
        moved = (along - 1) - s * (products - s)  # (û − s ĝ)·δ
        products += self.pull.astype(np.float32) * moved
        products += np.sqrt(self.own).astype(np.float32) * noise[:, : len(s)]
        return products

    def nearer_than_next(self, query: Predictive, items: NDArray[np.float32]) -> Floats:
        """Return P(each of the first k items is nearer to the query than the next one), (k − 1,).

        The length of a draw of the query is the same for both items, so that the difference of
        (ĝ + rλ (û − s ĝ))·δ + ε decides, which is normal. Of certain items this is exact.

        Parameters
        ----------
        items : (k, D), the first ones.
        """
        k, s = len(items), self.similarities
        lead = s[: k - 1] - s[1:k]
        pull = self.pull[:k, None]
        slopes = (1 - pull * s[:k, None]) * items + pull * query.direction
        variances = np.square(slopes[:-1] - slopes[1:]) @ query.variance.astype(np.float64)
        variances += self.own[: k - 1] + self.own[1:k]
        return np.asarray(ndtr(lead / np.sqrt(np.maximum(variances, _NOTHING))))

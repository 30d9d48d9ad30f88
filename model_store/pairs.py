"""The uncertainty of a similarity in closed form: query and item are both uncertain.

One posterior over the last layer moves both embeddings of a pair, and it moves them together. A
query is a = û + δ with δ ~ N(0, diag v), an item b = ĝ + λ (r δ + √(1 − r²) ε) with ε distributed
as δ; û and ĝ are unit. By the delta method the cosine s of a pair varies as
E·δ + (û − s ĝ)·λ √(1 − r²) ε with E = (1 − rλs) ĝ + (rλ − s) û, because ∂s/∂a = ĝ − s û and
∂s/∂b = û − s ĝ. The nearest published form is ProbCosine of BayesVLM (Baumann et al. 2026).

What is kept of an item is its mean and its total variance, so two things come from elsewhere. An
item's variance has the profile of the query's over dimensions, which is exact for a
Kronecker-factored posterior: there a variance is a number of the image times a number of the
dimension, and λ is the square root of a ratio. And r, the cosine of the features under the
posterior, would take as many numbers an item as there are features; it is a + b s, fitted to
validation images when the posterior is. On Caltech-101, Fashion-MNIST and CIFAR-10 the standard
deviation is that of sampled layers within 2 % (one division each; `make bench NAME=uncertainty`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from model_store.encoder.contract import EncoderMetadata
from model_store.predictive import Predictive

Correlation = tuple[float, float]
"""a and b of r ≈ a + b s."""

INDEPENDENT: Correlation = (0.0, 0.0)

OF_WEIGHTS = ("laplace", "online_laplace", "mc_dropout", "ensemble")
"""Beginnings of the names of distributions over weights. These move all embeddings together; any
other distribution is one of single images, whose errors are independent."""

_NOTHING = np.finfo(np.float32).tiny
"""A variance with which any lead is certain: similarities have eight decimals."""

_LEAST_NORM = 1e-3
"""Squared norm of an item's draw below which it has no direction."""

_FAR = 6.0
"""Standard deviations by which a normal number is smaller than its mean once in 10⁹ draws."""

Floats = NDArray[np.float64]


def is_over_weights(posterior: str) -> bool:
    """Return whether a posterior of this name is one over weights, whose errors images share."""
    return posterior.startswith(OF_WEIGHTS)


def correlation_of(metadata: EncoderMetadata) -> Correlation:
    """Return the correlation of the errors of a pair, by its similarity.

    Of a distribution over weights of which nothing else is known, r = s; of one over single images,
    r = 0.
    """
    if metadata.pair_correlation is not None:
        return metadata.pair_correlation
    return (0.0, 1.0) if is_over_weights(metadata.posterior) else INDEPENDENT


@dataclass(frozen=True, slots=True)
class Pairs:
    """A query and n items.

    Attributes
    ----------
    similarities : s (n,).
    ratios : λ (n,).
    correlations : r (n,).
    across : Σ_d v_d (û − s ĝ)_d² (n,), of a direction that turns the item and keeps its length.
    first_order : (n,) standard deviation of the cosine by the delta method, over the lengths that
        uncertain embeddings have: what tells wrong results and absent kinds best.
    std : (n,) the same with the part of second order, δ·ε, which large variances have.
    """

    similarities: Floats
    ratios: Floats
    correlations: Floats
    across: Floats
    first_order: Floats
    std: Floats

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
        correlations : r (n,) in [0, 1], see `correlation_of`.
        """
        v, s, r = query.variance.astype(np.float64), similarities, correlations
        total = v.sum()
        ratios = np.sqrt(total_variances / total) if total else np.zeros(len(s))
        of_items = (np.square(items) @ query.variance).astype(np.float64)
        of_both = items @ (query.variance * query.direction)
        of_query = float(v @ np.square(query.direction.astype(np.float64)))
        along, back = 1 - r * ratios * s, r * ratios - s
        shared = along**2 * of_items + 2 * along * back * of_both + back**2 * of_query
        across = np.maximum(of_query - 2 * s * of_both + s**2 * of_items, 0)
        alone = (1 - r**2) * ratios**2
        first = np.maximum(shared, 0) + alone * across
        lengths = (1 + total) * (1 + ratios**2 * total)
        second = first + alone * (v @ v)
        return cls(s, ratios, r, across, np.sqrt(first / lengths), np.sqrt(second / lengths))

    def at(self, places: NDArray[np.int64] | slice) -> Pairs:
        """Return some of the pairs."""
        return Pairs(*(getattr(self, field.name)[places] for field in fields(self)))

    def rivals(self, query: Predictive, k: int) -> int:
        """Return how many of the items, nearest first, may be among the k nearest of a draw.

        Those after them are `_FAR` standard deviations behind: no draw finds them so near.
        """
        total = np.add.reduce(query.variance)
        lengths = np.sqrt((1 + total) * (1 + self.ratios**2 * total))
        means = (self.similarities + self.ratios * self.correlations * total) / lengths
        reach = _FAR * self.std
        least = np.partition(means - reach, -k)[-k]
        return int(np.flatnonzero(means + reach >= least)[-1]) + 1

    def sampled(
        self, query: Predictive, items: NDArray[np.float32], noise: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return a·b / ‖b‖ (S, n) of S draws: the similarities times ‖a‖, the same for all items.

        The part of ε along ĝ changes the length of b and its product with a by the same factor; of
        the rest the product with a is one normal number.

        Parameters
        ----------
        noise : (S, m) standard normal, m ≥ n: of the items' own errors, by place.
        """
        draws, noise = query.samples, noise[:, : len(items)]
        s, ratios, r, across = (
            part.astype(np.float32)
            for part in (self.similarities, self.ratios, self.correlations, self.across)
        )
        shared, alone = r * ratios, np.sqrt(1 - r**2) * ratios
        moved = draws - query.direction
        products = draws @ items.T
        along = draws @ query.direction
        squared = np.einsum("sd,sd->s", draws, draws)
        # In place: each array of (S, n) that is made anew takes as long as two operations.
        norms = products * (2 * shared)
        norms += np.multiply.outer(np.einsum("sd,sd->s", moved, moved), shared**2)
        norms += 1 - 2 * shared * s + alone**2 * np.add.reduce(query.variance)
        np.sqrt(np.maximum(norms, _LEAST_NORM, out=norms), out=norms)
        own = np.add.outer(np.square(moved) @ query.variance, across)
        np.sqrt(own, out=own)
        own *= noise
        own *= alone
        products += own
        products += np.multiply.outer(squared - along, shared, out=own)
        products /= norms
        return products

    def nearer_than_next(self, query: Predictive, items: NDArray[np.float32]) -> Floats:
        """Return P(each of the first k items is nearer to the query than the next one), (k − 1,).

        The length of a draw of the query is the same for both items, so that a·b / ‖b‖ decides. Its
        mean is (s + rλ Σ_d v_d) / √(1 + λ² Σ_d v_d): an uncertain item is often farther than it
        seems. Its deviations are (ĝ + rλ (û − s ĝ))·δ and the item's own, over the same length; the
        difference of two is taken to be normal. Of certain items that is exact.

        Parameters
        ----------
        items : (k, D), the first ones.
        """
        k, v = len(items), query.variance.astype(np.float64)
        s, ratios, r = self.similarities[:k], self.ratios[:k], self.correlations[:k]
        pull, lengths = r * ratios, np.sqrt(1 + ratios**2 * v.sum())
        means = (s + pull * v.sum()) / lengths
        slopes = (1 - pull * s)[:, None] * items + pull[:, None] * query.direction
        slopes /= lengths[:, None]
        variances = np.square(slopes[:-1] - slopes[1:]) @ v
        own = (1 - r**2) * ratios**2 * (self.across[:k] + v @ v) / lengths**2
        variances += own[:-1] + own[1:]
        lead = means[:-1] - means[1:]
        return np.asarray(ndtr(lead / np.sqrt(np.maximum(variances, _NOTHING))))

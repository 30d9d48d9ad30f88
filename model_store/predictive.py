"""The predictive distribution of a query, and the uncertainty of its similarity to an item.

The uncertainty of a similarity has a closed form, also if query and item are both uncertain.
A posterior over the last layer moves both embeddings of a pair, so the errors of the two embeddings
are correlated. The query is a = û + δ with δ ~ N(0, diag v). The item is b = ĝ + λ (r δ + √(1 − r²)
ε), and ε has the same distribution as δ. û and ĝ are unit vectors. The cosine s of the pair has the
derivatives ∂s/∂a = ĝ − s û and ∂s/∂b = û − s ĝ. So by the delta method, the error of s is E·δ + (û
− s ĝ)·λ √(1 − r²) ε with E = (1 − rλs) ĝ + (rλ − s) û. The nearest published form is ProbCosine of
BayesVLM (Baumann et al. 2026).

Only the mean and the total variance of an item are used, so two quantities are approximated. First,
the item's variance is assumed to be proportional to the query's variance in every dimension. This
assumption is exact for a Kronecker-factored posterior. The variance of such a posterior is a
product of two factors: one depends only on the image, and the other only on the dimension. λ is the
square root of the ratio of the two images' factors. Second, r is the cosine of the features under
the posterior. The computation of this cosine would need all features of each item. So r is
approximated from the embeddings, see `Correlation`. The coefficients are fitted to validation
images together with the posterior. On five data sets, the standard deviation differs by at most 4 %
from the standard deviation over sampled layers (means over five divisions; `make bench
NAME=uncertainty`).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from model_store.encoder.contract import Embeddings, EncoderMetadata, QueryKind
from model_store.sphere import concentration_of
from model_store.table import Table

N_SAMPLES = 100
"""Number of predictive samples per query, as in the Laplace metric-learning paper."""

_HEADER = struct.Struct("<4sIddd")
_MAGICS: dict[bytes, QueryKind] = {b"VPD7": "image", b"VPT7": "text"}
_MAGIC_OF = {kind: magic for magic, kind in _MAGICS.items()}


@dataclass(frozen=True, slots=True)
class Predictive:
    """A query's embedding as a distribution on the unit sphere.

    Attributes
    ----------
    direction : (D,) float32, unit vector at the centre of the distribution.
    variance : (D,) float32, variance of the embedding before normalisation, divided by the squared
        norm of the embedding. N(direction, diag variance) then has the same distribution of
        directions.
    spherical_variance : 1 − R in [0, 1], with R the mean resultant length.
    outlier_score : score that is larger for queries unlike the gallery's images; NaN without a
        detector.
    displacement : predicted displacement of the embedding because the picture is degraded, see
        `DisplacementModel`; NaN if unknown.
    kind : kind of the query, which determines its calibration.
    has_uncertainty : False if the encoder gives no variance.
    """

    direction: NDArray[np.float32]
    variance: NDArray[np.float32]
    spherical_variance: float
    outlier_score: float
    kind: QueryKind = "image"
    displacement: float = math.nan
    has_uncertainty: bool = field(init=False)

    def __post_init__(self) -> None:
        # Computed once, and not by each search: on the event loop, NumPy could release the GIL, and
        # the event loop would wait for the search of another request.
        object.__setattr__(self, "has_uncertainty", bool(self.variance.any()))

    @property
    def concentration(self) -> float:
        """κ of the von Mises-Fisher distribution with the same mean resultant length."""
        return float(concentration_of(1 - self.spherical_variance, len(self.direction)))

    def samples(self, noise: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return draws (S, D) of N(direction, diag variance), before normalisation.

        Parameters
        ----------
        noise : (S, D) standard normal noise (`model_store.sphere.base_noise`). The noise is fixed
            for an encoder, so that every replica draws the same samples for an image.
        """
        std: NDArray[np.float32] = np.sqrt(self.variance)
        return self.direction + std * noise

    def to_bytes(self) -> bytes:
        """Serialise to a fixed binary layout; no pickle, and no checksum."""
        body = b"".join(part.astype("<f4").tobytes() for part in (self.direction, self.variance))
        header = _HEADER.pack(
            _MAGIC_OF[self.kind],
            len(self.direction),
            self.spherical_variance,
            self.outlier_score,
            self.displacement,
        )
        return header + body

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Predictive | None:
        """Parse the result of `to_bytes`; None for a different layout or an impossible number."""
        if len(data) < _HEADER.size:
            return None
        magic, dim, *moments = _HEADER.unpack_from(data)
        body = memoryview(data)[_HEADER.size :]
        if magic not in _MAGICS or not dim or len(body) != 2 * 4 * dim:
            return None
        values = np.frombuffer(body, "<f4").astype(np.float32, copy=False).reshape(2, dim)
        spread, score, displacement = moments
        unbounded = math.isinf(score) or math.isinf(displacement)
        is_possible = np.isfinite(values).all() and (values[1] >= 0).all() and 0 <= spread <= 1
        if unbounded or not is_possible:
            return None
        return cls(values[0], values[1], spread, score, _MAGICS[magic], displacement)


def predict(
    embeddings: Embeddings,
    outlier_scores: NDArray[np.float64],
    kind: QueryKind = "image",
    displacements: NDArray[np.float64] | None = None,
) -> list[Predictive]:
    """Convert B embeddings to predictive distributions.

    Parameters
    ----------
    embeddings : B embeddings.
    outlier_scores : (B,) outlier scores; NaN without a detector.
    kind : kind of the queries.
    displacements : (B,), see `Predictive`; None if not known.
    """
    if displacements is None:
        displacements = np.full(len(embeddings), np.nan)
    directions, variances = embeddings.directions, embeddings.spherical_variances
    squared_norms = (embeddings.mean**2).sum(axis=1, keepdims=True)
    relative = embeddings.variance / np.maximum(squared_norms, np.finfo(np.float32).tiny)
    return [
        Predictive(
            directions[row],
            relative[row],
            float(variances[row]),
            float(outlier_scores[row]),
            kind,
            float(displacements[row]),
        )
        for row in range(len(directions))
    ]


OF_WEIGHTS = ("laplace", "online_laplace", "mc_dropout", "ensemble")
"""Prefixes of the names of posteriors over weights. With such a posterior, one draw of the weights
changes all embeddings, so their errors are correlated. With any other posterior, the errors of
different images are independent."""

_NOTHING = np.finfo(np.float32).tiny
"""A tiny variance. Similarities have eight decimals. With this variance, the order of two different
similarities is certain."""

_LEAST_NORM = 1e-3
"""Minimum squared norm of an item's random draw. A draw with norm 0 would have no direction."""

_FAR = 6.0
"""Number of standard deviations. A normal number is below its mean by more than this only once in
10⁹ draws."""

Floats = NDArray[np.float64]


class Correlation(NamedTuple):
    """The coefficients a, b and c of r ≈ a + b s + c s / √(t_q t_i).

    s is the similarity of query and item. t = Σ_d v_d / ‖m‖² is the total variance of an embedding
    m. The third term has the form of the covariance of a posterior that has the same variance in
    all directions of the features that the last layer keeps: this covariance is proportional to
    m_q·m_i, and the standard deviations are proportional to √t ‖m‖. The first two terms stand for
    the other directions.
    """

    constant: float = 0.0
    of_similarity: float = 0.0
    of_products: float = 0.0

    def of(self, similarities: Floats, total: float, totals: NDArray[np.floating]) -> Floats:
        """Return r in [0, 1] of a query and n items.

        Parameters
        ----------
        similarities : s (n,).
        total : total variance t_q of the query.
        totals : (n,) total variances t_i of the items.
        """
        products = similarities / np.sqrt(np.maximum(total * totals, _NOTHING))
        r = self.constant + self.of_similarity * similarities + self.of_products * products
        bounded: Floats = r.clip(0, 1)
        return bounded

    def in_units_of(self, total: float) -> Correlation:
        """Return the coefficients for variances; these are for variances divided by ``total``."""
        return self._replace(of_products=self.of_products * total)


INDEPENDENT = Correlation()
AS_SIMILAR = Correlation(of_similarity=1.0)
"""The errors of two embeddings are as correlated as the embeddings are similar."""


def is_over_weights(posterior: str) -> bool:
    """Return whether the posterior with this name is a posterior over weights."""
    return posterior.startswith(OF_WEIGHTS)


def correlation_of(metadata: EncoderMetadata) -> Correlation:
    """Return the correlation of the errors of a pair as a function of its similarity.

    Without fitted values, r = s for a posterior over weights, and r = 0 for other posteriors.
    """
    if metadata.pair_correlation is not None:
        return Correlation(*metadata.pair_correlation)
    return AS_SIMILAR if is_over_weights(metadata.posterior) else INDEPENDENT


class Noise(NamedTuple):
    """Standard normal noise for S draws of a pair, the same for all queries.

    Attributes
    ----------
    of_query : (S, D) noise of the query's embedding.
    of_items : (S, m) noise of the items' independent errors; column i is for the i-th item.
    """

    of_query: NDArray[np.float32]
    of_items: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pairs(Table):
    """A query and n items.

    Attributes
    ----------
    similarities : s (n,).
    variances : (n,) total variances of the items, see `Gallery.total_variances`.
    ratios : λ (n,).
    correlations : r (n,).
    across : (n,) Σ_d v_d (û − s ĝ)_d², the variance in the direction that rotates the item without
        changing its length.
    first_order : (n,) standard deviation of the cosine by the delta method, divided by the expected
        lengths of the uncertain embeddings. This value is the best indicator of wrong results and
        absent queries.
    std : (n,) ``first_order`` plus the second-order term δ·ε, which is important for large
        variances.
    """

    similarities: Floats
    variances: NDArray[np.float32]
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
        items : (n, D) unit vectors ĝ.
        similarities : (n,) similarities of ``items`` to the query's direction.
        total_variances : (n,), see `Gallery.total_variances`.
        correlations : (n,) r in [0, 1], see `correlation_of`.
        """
        v, s, r = query.variance.astype(np.float64), similarities, correlations
        total = np.add.reduce(v)
        squared_ratios = total_variances / total if total else np.zeros(len(s))
        ratios = np.sqrt(squared_ratios)
        # Unlike `@`, `vecdot` gives an item the same result for any number of items.
        of_items = np.vecdot(np.square(items), query.variance).astype(np.float64)
        of_both = np.vecdot(items, query.variance * query.direction)
        of_query = float(v @ np.square(query.direction.astype(np.float64)))
        pull = r * ratios
        along, back = 1 - pull * s, pull - s
        shared = along**2 * of_items + (2 * along * back) * of_both + back**2 * of_query
        across = np.maximum(of_query - 2 * s * of_both + s**2 * of_items, 0)
        alone = (1 - r**2) * squared_ratios
        first = np.maximum(shared, 0) + alone * across
        lengths = (1 + total) * (1 + squared_ratios * total)
        second = first + alone * (v @ v)
        first_order, std = np.sqrt(first / lengths), np.sqrt(second / lengths)
        return cls(s, total_variances, ratios, r, across, first_order, std)

    def rivals(self, query: Predictive, k: int) -> int:
        """Return how many of the first items can be among the k nearest items of a draw.

        The other items are farther than the k-th nearest item by more than `_FAR` standard
        deviations.
        """
        total = np.add.reduce(query.variance)
        lengths = np.sqrt((1 + total) * (1 + self.ratios**2 * total))
        means = (self.similarities + self.ratios * self.correlations * total) / lengths
        reach = _FAR * self.std
        least = np.partition(means - reach, -k)[-k]
        return int(np.flatnonzero(means + reach >= least)[-1]) + 1

    def sampled(
        self, query: Predictive, items: NDArray[np.float32], noise: Noise
    ) -> NDArray[np.float32]:
        """Return a·b / ‖b‖ (S, k) for S draws of the first k items: similarities times ‖a‖.

        The part of ε along ĝ changes ‖b‖ and a·b by the same factor, so this part cancels. The dot
        product of a and the rest of ε is one normally distributed number.

        Parameters
        ----------
        items : (k, D) unit vectors of the first k items.
        noise : noise for m ≥ k items.
        """
        draws, k = query.samples(noise.of_query), len(items)
        s, ratios, r, across = (
            part[:k].astype(np.float32)
            for part in (self.similarities, self.ratios, self.correlations, self.across)
        )
        shared, alone = r * ratios, (1 - r**2) * ratios**2
        moved: NDArray[np.float32] = np.square(draws - query.direction)
        drawn, squared = moved @ query.variance, moved.sum(axis=1)
        along = draws @ query.direction
        products = draws @ items.T
        fixed = 1 - 2 * shared * s + alone * np.float32(query.variance.sum())
        norms = products * (2 * shared)
        norms += _outer_sum(squared, shared**2, fixed)
        np.sqrt(np.maximum(norms, _LEAST_NORM, out=norms), out=norms)
        own = _outer_sum(drawn, alone, alone * across)
        np.sqrt(own, out=own)
        own *= noise.of_items[:, :k]
        products += own
        # ‖a‖² − a·û = ‖a − û‖² + a·û − 1
        products += _outer_sum(squared + along - 1, shared, 0.0)
        products /= norms
        return products

    def nearer_than_next(self, query: Predictive, items: NDArray[np.float32]) -> Floats:
        """Return P(item i is nearer to the query than item i + 1), (k − 1,).

        The length ‖a‖ of the query's draw is the same for both items, so a·b / ‖b‖ is compared. The
        mean of this value is (s + rλ Σ_d v_d) / √(1 + λ² Σ_d v_d). So an uncertain item is often
        farther than its similarity shows. The error of this value is (ĝ + rλ (û − s ĝ))·δ plus the
        item's independent error, divided by the same length. The difference between the values of
        two items is treated as normal, which is exact for items without variance.

        Parameters
        ----------
        items : (k, D) unit vectors of the first k items.
        """
        k, v = len(items), query.variance.astype(np.float64)
        s, ratios, r = self.similarities[:k], self.ratios[:k], self.correlations[:k]
        total, pull = np.add.reduce(v), r * ratios
        squared_lengths = 1 + ratios**2 * total
        lengths = np.sqrt(squared_lengths)
        means = (s + pull * total) / lengths
        slopes = ((1 - pull * s) / lengths)[:, None] * items
        slopes += np.multiply.outer(pull / lengths, query.direction)
        variances = np.square(slopes[:-1] - slopes[1:]) @ v
        own = (1 - r**2) * ratios**2 * (self.across[:k] + v @ v) / squared_lengths
        variances += own[:-1] + own[1:]
        lead = means[:-1] - means[1:]
        return np.asarray(ndtr(lead / np.sqrt(np.maximum(variances, _NOTHING))))


def _outer_sum(
    column: NDArray[np.float32], row: NDArray[np.float32], added: NDArray[np.float32] | float
) -> NDArray[np.float32]:
    """Return (S, n): the product of ``column`` and ``row``, plus ``added``.

    One product of matrices takes half as long as a separate multiplication and addition.
    """
    left, right = np.ones((len(column), 2), np.float32), np.empty((2, len(row)), np.float32)
    left[:, 0], right[0], right[1] = column, row, added
    return left @ right

"""The predictive distribution of one query, for the cache, the search and the decision."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings, QueryKind
from model_store.sphere import concentration_of

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
        for row in range(len(embeddings))
    ]

"""How alien a query's features are, at the cost of two small matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class OutlierDetector:
    """Distance of L2-normalised features to the nearest in the gallery (after Sun et al. 2022).

    With x = φ / ‖φ‖ and its coordinates t = (x − c) U in the r leading principal directions,

        d² = min_m ‖t − t_m‖² + ‖(x − c) − t Uᵀ‖²

    over the reference coordinates t_m. The second term is what of the
    query lies outside the gallery's subspace, the residual of ViM (Wang et al. 2022): alien images
    differ there most, and a distance within the subspace alone does not see it.

    Attributes
    ----------
    centre : (F,) c.
    basis : (F, r) U, orthonormal columns.
    references : (M, r) coordinates t_m of gallery images.
    """

    centre: NDArray[np.float32]
    basis: NDArray[np.float32]
    references: NDArray[np.float32]

    def __post_init__(self) -> None:
        n_features, rank = self.basis.shape
        if self.centre.shape != (n_features,) or self.references.shape[1:] != (rank,):
            raise ValueError(
                f"{self.basis.shape=} does not go with {self.centre.shape=} and "
                f"{self.references.shape=}"
            )

    def distances(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Distances (B,) of ``features`` (B, F), larger is more alien."""
        centred = unit_rows(features) - self.centre
        coordinates = centred @ self.basis
        length = (coordinates**2).sum(-1)
        residual = (centred**2).sum(-1) - length
        squared = (
            length[:, None] - 2 * coordinates @ self.references.T + (self.references**2).sum(-1)
        )
        nearest = np.maximum(squared.min(axis=1), 0).astype(np.float64)
        distances: NDArray[np.float64] = np.sqrt(nearest + np.maximum(residual, 0))
        return distances


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2-normalise the rows of ``features`` (B, F); a row of zeros stays one."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = features / np.maximum(norms, np.finfo(np.float32).tiny)
    return unit

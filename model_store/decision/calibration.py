"""The fitted decision layer: everything that turns a result list into promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision.logistic import LogisticModel
from model_store.decision.operating import OperatingCurve
from model_store.decision.outliers import OutlierDetector
from model_store.decision.signals import SIGNALS
from model_store.errors import BundleMismatch

_CURVE = fields(OperatingCurve)

CALIBRATION_FILE = "calibration.json"
ARRAYS_FILE = "calibration.npz"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted on held-out queries of one gallery and one encoder.

    Attributes
    ----------
    encoder_fingerprint : the encoder it was fitted with; it means nothing for another.
    n_queries : calibration queries that have a match.
    alpha : default rate of false alarms of the outlier flag.
    match_threshold : match probability from which the verdict is ``match``.
    operating : the error that other thresholds would have.
    uncertainties : (n,) of the calibration queries, sorted.
    outlier_distances : (n,) of the calibration queries, sorted.
    detector : measures outlier distances.
    match : P(item is a true match | its signals).
    no_match : P(nothing in the gallery matches | the first item's signals).
    quality_limits : see `model_store.quality.quality_hints`.
    report : how it was fitted and how well it does, for people.
    """

    encoder_fingerprint: str
    n_queries: int
    alpha: float
    match_threshold: float
    operating: OperatingCurve
    uncertainties: NDArray[np.float64]
    outlier_distances: NDArray[np.float64]
    detector: OutlierDetector
    match: LogisticModel
    no_match: LogisticModel
    quality_limits: Mapping[str, float]
    report: Mapping[str, Any]

    def uncertainty_percentile(self, spherical_variance: float) -> float:
        """Share of calibration queries that are less uncertain, in percent."""
        below = np.searchsorted(self.uncertainties, spherical_variance, side="left")
        return float(100 * below / len(self.uncertainties))

    def outlier_p_value(self, distance: float) -> float:
        """Conformal p-value (1 + #{calibration distances ≥ distance}) / (n + 1)."""
        n = len(self.outlier_distances)
        at_least = n - np.searchsorted(self.outlier_distances, distance, side="left")
        return float((1 + at_least) / (n + 1))

    def save(self, directory: Path) -> None:
        """Write to ``directory``: numbers as JSON, arrays as NPZ without pickle."""
        scalars = {
            "encoder_fingerprint": self.encoder_fingerprint,
            "n_queries": self.n_queries,
            "alpha": self.alpha,
            "match_threshold": self.match_threshold,
            "signals": list(SIGNALS),
            "match_intercept": self.match.intercept,
            "no_match_intercept": self.no_match.intercept,
            "quality_limits": dict(self.quality_limits),
            "report": dict(self.report),
        }
        text = json.dumps(scalars, indent=1, sort_keys=True, allow_nan=False)
        (directory / CALIBRATION_FILE).write_text(text + "\n", encoding="utf-8")
        arrays = {
            "uncertainties": self.uncertainties,
            "outlier_distances": self.outlier_distances,
            "detector_centre": self.detector.centre,
            "detector_basis": self.detector.basis,
            "detector_references": self.detector.references,
        }
        arrays |= {f"operating_{f.name}": getattr(self.operating, f.name) for f in _CURVE}
        for name, fitted in (("match", self.match), ("no_match", self.no_match)):
            arrays[f"{name}_weights"] = fitted.weights
            arrays[f"{name}_centre"] = fitted.centre
            arrays[f"{name}_scale"] = fitted.scale
        np.savez(directory / ARRAYS_FILE, **arrays)  # type: ignore[arg-type] # numpy's stub

    @classmethod
    def load(cls, directory: Path) -> Calibration | None:
        """Read what `save` wrote; None where ``directory`` holds no calibration."""
        path = directory / CALIBRATION_FILE
        if not path.exists():
            return None
        scalars = json.loads(path.read_text(encoding="utf-8"))
        if tuple(scalars["signals"]) != SIGNALS:
            raise BundleMismatch(
                f"The calibration was fitted on the signals {scalars['signals']}; this release "
                f"computes {list(SIGNALS)}. Run `vouch-build calibrate` again."
            )
        with np.load(directory / ARRAYS_FILE, allow_pickle=False) as arrays:
            logistic = {
                name: LogisticModel(
                    arrays[f"{name}_weights"],
                    arrays[f"{name}_centre"],
                    arrays[f"{name}_scale"],
                    scalars[f"{name}_intercept"],
                )
                for name in ("match", "no_match")
            }
            detector = OutlierDetector(
                arrays["detector_centre"],
                arrays["detector_basis"],
                arrays["detector_references"],
            )
            return cls(
                scalars["encoder_fingerprint"],
                scalars["n_queries"],
                scalars["alpha"],
                scalars["match_threshold"],
                OperatingCurve(*(arrays[f"operating_{f.name}"] for f in _CURVE)),
                arrays["uncertainties"],
                arrays["outlier_distances"],
                detector,
                logistic["match"],
                logistic["no_match"],
                scalars["quality_limits"],
                scalars["report"],
            )

"""The fitted decision layer: everything that turns a result list into promises."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from model_store.decision.label_means import LabelMeans
from model_store.decision.logistic import LogisticModel
from model_store.decision.operating import OperatingCurve
from model_store.decision.outliers import OUTLIER_SIGNALS, OutlierDetector, OutlierFusion
from model_store.decision.recalibration import Recalibration
from model_store.decision.result_sets import ResultSetRule
from model_store.decision.signals import SIGNALS
from model_store.decision.venn_abers import VennAbers
from model_store.encoder import Embeddings
from model_store.errors import BundleMismatch

CALIBRATION_FILE = "calibration.json"
ARRAYS_FILE = "calibration.npz"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted on held-out queries of one gallery and one encoder.

    Attributes
    ----------
    encoder_fingerprint : the encoder it was fitted with; it means nothing for another.
    search : the search settings it was fitted with; of others it is stale.
    n_queries : calibration queries that have a match.
    alpha : default rate of false alarms of the outlier flag.
    coverage : default coverage of result sets.
    match_threshold : match probability from which the verdict is ``match``.
    operating : the error that other thresholds would have.
    uncertainties : (n,) of the calibration queries, sorted.
    outlier_scores : (n,) of the calibration queries, sorted.
    means : where each label lies.
    detector : measures outlier signals.
    fusion : makes the outlier score of them.
    match : log-odds that a label is the true match against that none is, by the signals of its
        nearest item; `choice_probabilities` turns those of all labels found into probabilities.
    no_match : P(nothing in the gallery matches | the first item's signals).
    intervals : of match probabilities, by their log-odds.
    feedback : corrects match probabilities and their intervals by what users said; result sets and
        P(no match) rest on the calibration queries alone.
    sets : which items belong in a result set.
    quality_limits : see `model_store.quality.quality_hints`.
    report : how it was fitted and how well it does, for people.
    """

    encoder_fingerprint: str
    search: Mapping[str, Any]
    n_queries: int
    alpha: float
    coverage: float
    match_threshold: float
    operating: OperatingCurve
    uncertainties: NDArray[np.float64]
    outlier_scores: NDArray[np.float64]
    means: LabelMeans
    detector: OutlierDetector
    fusion: OutlierFusion
    match: LogisticModel
    no_match: LogisticModel
    intervals: VennAbers
    feedback: Recalibration
    sets: ResultSetRule
    quality_limits: Mapping[str, float]
    report: Mapping[str, Any]

    def uncertainty_percentile(self, spherical_variance: float) -> float:
        """Share of calibration queries that are less uncertain, in percent; of NaN, all are."""
        if math.isnan(spherical_variance):
            return 100.0
        below = bisect_left(self.uncertainties, spherical_variance)
        return 100 * below / len(self.uncertainties)

    def outlier_score(self, embeddings: Embeddings) -> NDArray[np.float64]:
        """How alien B queries are, (B,)."""
        return self.fusion(self.detector.signals(embeddings))

    def outlier_p_value(self, score: float) -> float:
        """Conformal p-value (1 + #{calibration scores ≥ score}) / (n + 1) of a score, not NaN."""
        n = len(self.outlier_scores)
        at_least = n - bisect_left(self.outlier_scores, score)
        return (1 + at_least) / (n + 1)

    def match_fingerprint(self) -> str:
        """Identifies what uncorrected match probabilities were fitted with and on.

        Feedback on others says nothing of these. Fitted again on the same queries they are the same
        but for rounding, which is why it is not the fitted numbers that are hashed.
        """
        origin = {
            "encoder": self.encoder_fingerprint,
            "search": dict(self.search),
            "signals": [*SIGNALS, *OUTLIER_SIGNALS],
            "n_queries": self.n_queries,
            "no_match_share": self.report.get("no_match_share"),
        }
        return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()

    def outlier_fingerprint(self) -> str:
        """Identifies what makes outlier scores, and nothing else of the calibration."""
        digest = hashlib.sha256()
        for part in (self.detector, self.fusion):
            for name, value in _leaves(part):
                digest.update(f"{name}:{np.shape(value)}:".encode())
                digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def save(self, directory: Path) -> None:
        """Write to ``directory``: numbers as JSON, arrays as NPZ without pickle."""
        arrays: dict[str, NDArray[Any]] = {}
        scalars: dict[str, Any] = {"signals": [*SIGNALS, *OUTLIER_SIGNALS]}
        for name, value in _leaves(self):
            if isinstance(value, np.ndarray):
                arrays[name] = value
            else:
                scalars[name] = dict(value) if isinstance(value, Mapping) else value
        text = json.dumps(scalars, indent=1, sort_keys=True, allow_nan=False)
        (directory / CALIBRATION_FILE).write_text(text + "\n", encoding="utf-8")
        np.savez(directory / ARRAYS_FILE, **arrays)  # type: ignore[arg-type] # numpy's stub

    @classmethod
    def load(cls, directory: Path) -> Calibration | None:
        """Read what `save` wrote; None where ``directory`` holds no calibration.

        Raises
        ------
        BundleMismatch : another release wrote it.
        """
        path = directory / CALIBRATION_FILE
        if not path.exists():
            return None
        scalars = json.loads(path.read_text(encoding="utf-8"))
        known = [*SIGNALS, *OUTLIER_SIGNALS]
        if scalars["signals"] != known:
            raise BundleMismatch(
                f"The calibration was fitted on the signals {scalars['signals']}; this release "
                f"computes {known}. Run `vouch-build calibrate` again."
            )
        with np.load(directory / ARRAYS_FILE, allow_pickle=False) as arrays:
            calibration: Calibration = _assembled(cls, {**scalars, **arrays})
        return calibration


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any part
    """Fields of a dataclass and of the dataclasses in it, with dotted names."""
    for field in fields(value):
        part = getattr(value, field.name)
        if is_dataclass(part):
            yield from _leaves(part, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, part


def _assembled(kind: Any, leaves: Mapping[str, Any], prefix: str = "") -> Any:  # noqa: ANN401
    """The dataclass that `_leaves` took apart."""
    hints = get_type_hints(kind)
    return kind(
        **{
            field.name: _assembled(hints[field.name], leaves, f"{prefix}{field.name}.")
            if is_dataclass(hints[field.name])
            else leaves[prefix + field.name]
            for field in fields(kind)
        }
    )

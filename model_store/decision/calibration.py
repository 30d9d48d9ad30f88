"""The fitted decision layer: everything that turns a result list into promises."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from model_store.decision.evidence import Evidence
from model_store.decision.hierarchy import Hierarchy
from model_store.decision.label_means import LabelMeans
from model_store.decision.logistic import LogisticModel
from model_store.decision.outliers import OUTLIER_SIGNALS, OutlierDetector
from model_store.decision.picture import PictureState
from model_store.decision.promises import Promises
from model_store.decision.recalibration import Recalibration
from model_store.decision.signals import SIGNALS
from model_store.encoder.contract import Embeddings, QueryKind
from model_store.errors import UnknownSource
from model_store.files import json_text, replacing
from model_store.verdicts import Order

CALIBRATION_FILE = "calibration.json"
ARRAYS_FILE = "calibration.npz"
FILES: Mapping[QueryKind, tuple[str, str]] = {
    "image": (CALIBRATION_FILE, ARRAYS_FILE),
    "text": ("text_calibration.json", "text_calibration.npz"),
}
"""Numbers and arrays of the calibrations, by the kind of the queries that they judge."""

DEFAULT_ABSENT = 0.05
"""Share of absent queries where neither request, key, operator nor configuration names one."""

UNKNOWN_CLASS = -1
"""The class of a label that came after the calibration, and was compacted since."""

OUTDATED = (
    "An earlier release calibrated this bundle, with signals that this release does not compute. "
    "Run `vouch-build upgrade BUNDLES`: it calibrates again if the bundle keeps its queries."
)

_MOST_PROMISES = 64
"""Shares, sources, orders and α whose promises are remembered: any caller may ask for any."""


@dataclass(frozen=True)
class Calibration:
    """The decision layer, fitted on calibration queries of one gallery and one encoder.

    Attributes
    ----------
    encoder_fingerprint : the encoder it was fitted with; it means nothing for another.
    search : the search settings it was fitted with; of others it is stale.
    n_candidates : items that the list of a query holds, in the fit as in service.
    n_queries : calibration queries that have a match.
    alpha : default rate of false alarms of the outlier flag.
    coverage : default coverage of result sets.
    max_error : largest share of wrong ones among first items that are called a match.
    max_false_match_rate : largest FPIR, the share of absent queries that get a match; None for any.
    delta : each promise is kept with probability 1 − δ over calibrations.
    assumed_absent : share of absent queries that the probabilities were fitted with.
    expected_absent : share that the gallery's configuration expects; None for `DEFAULT_ABSENT`.
    order : of lists where a request names none.
    outlier_scores : (n,) of the calibration queries, sorted.
    means : where each label lies.
    label_classes : (C,) size class of each label by its code, see `SIZE_CLASSES`; `UNKNOWN_CLASS`
        for labels added after the calibration.
    n_labels : (3,) labels of each size class; an item without a label is a separate one.
    detector : measures the outlier score.
    match : log-odds that a label is the true match against that none is, by the signals of its
        nearest item; `choice_probabilities` turns those of all labels found into probabilities.
    feedback : corrects match probabilities by what users said.
    evidence : the outcome of each calibration query; all promises are computed from it.
    quality_limits : see `model_store.images.quality.quality_hints`.
    report : how it was fitted and how well it does, for people.
    hierarchy : labels above labels, to roll up to; None where labels have no parents.
    within : metres from a query to a true match; None where a match has the same label.
    similarity_stds : (n,) `Assessment.uncertainty` of the calibration queries, sorted; None in
        bundles of releases that measured another uncertainty.
    picture : sees the state of a picture; None of vectors and texts, and in bundles of earlier
        releases.
    absent_outlier_scores : (n,) of the absent calibration queries, sorted; None in bundles of
        releases that did not keep them.
    outdated : why it decides nothing, where another release fitted it to other signals; its
        settings hold for the next one. None of one of this release.
    """

    encoder_fingerprint: str
    search: Mapping[str, Any]
    n_candidates: int
    n_queries: int
    alpha: float
    coverage: float
    max_error: float
    max_false_match_rate: float | None
    delta: float
    assumed_absent: float
    expected_absent: float | None
    order: Order
    outlier_scores: NDArray[np.float64]
    means: LabelMeans
    label_classes: NDArray[np.int8]
    n_labels: NDArray[np.int64]
    detector: OutlierDetector
    match: LogisticModel
    feedback: Recalibration
    evidence: Evidence
    quality_limits: Mapping[str, float]
    report: Mapping[str, Any]
    hierarchy: Hierarchy | None = None
    within: float | None = None
    similarity_stds: NDArray[np.float64] | None = None
    picture: PictureState | None = None
    absent_outlier_scores: NDArray[np.float64] | None = None
    outdated: str | None = None

    @property
    def default_share(self) -> float:
        """The share of absent queries where neither request, key nor operator names one."""
        return DEFAULT_ABSENT if self.expected_absent is None else self.expected_absent

    @property
    def estimate_is_hint(self) -> bool:
        """True if a share that is estimated from served queries is far off, if anything.

        Then absent calibration queries are views of items with the item hidden.
        """
        return self.evidence.absence == "near_misses_of_views"

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources of calibration queries; empty where no source is known."""
        names = tuple(self.evidence.source_names)
        return () if names == ("",) else names

    def promises(
        self,
        expected_absent: float | None = None,
        source: str | None = None,
        order: Order | None = None,
        alpha: float | None = None,
    ) -> Promises:
        """Return the promises for queries from ``source``, given their share of absent ones.

        Parameters
        ----------
        expected_absent : None for the default share.
        source : None for the calibration queries of all sources.
        order : of the lists; None for the default one.
        alpha : of the outlier flag; None for the default one.

        Raises
        ------
        UnknownSource : no calibration query comes from there.
        """
        share = self.default_share if expected_absent is None else expected_absent
        order, alpha = order or self.order, self.alpha if alpha is None else alpha
        key = share, source, order, alpha
        known = self._promises.get(key)
        if known is None:
            known = self._compute_promises(*key)
            while len(self._promises) >= _MOST_PROMISES:
                self._promises.popitem(last=False)
            self._promises[key] = known
        return known

    def _compute_promises(
        self, share: float, source: str | None, order: Order, alpha: float
    ) -> Promises:
        if source is not None and source not in self.sources:
            known = ", ".join(map(repr, self.sources)) or "none: no source was given to calibrate"
            raise UnknownSource(
                f"No calibration query comes from the source {source!r}. Known sources: {known}."
            )
        evidence = self.evidence.of_order(order)
        return Promises(
            evidence if source is None else evidence.of_source(source),
            self.n_labels,
            self.assumed_absent,
            share,
            self.feedback,
            self.max_error,
            self.max_false_match_rate,
            self.delta,
            () if self.hierarchy is None else self.hierarchy.levels,
            alpha,
        )

    @cached_property
    def _promises(self) -> OrderedDict[tuple[float, str | None, Order, float], Promises]:
        return OrderedDict()

    def classes_of(self, label_codes: NDArray[np.int32]) -> NDArray[np.int8]:
        """Return the size classes (g,) of labels by their codes (g,).

        A label that is unknown, since it came after the calibration or is −1, has one item.
        """
        classes: NDArray[np.int8] = np.maximum(self.known_classes(label_codes), 0)
        return classes

    def known_classes(self, label_codes: NDArray[np.int32]) -> NDArray[np.int8]:
        """Return the same, `UNKNOWN_CLASS` of labels that are unknown."""
        known = (label_codes >= 0) & (label_codes < len(self.label_classes))
        if known.all():
            return self.label_classes[label_codes]
        classes = np.full(len(label_codes), UNKNOWN_CLASS, dtype=np.int8)
        classes[known] = self.label_classes[label_codes[known]]
        return classes

    def n_new_labels(self, n_labels: int) -> int:
        """Return how many of a gallery's ``n_labels`` came after the calibration."""
        n_later = max(n_labels - len(self.label_classes), 0)
        return n_later + int((self.label_classes == UNKNOWN_CLASS).sum())

    def uncertainty_percentile(self, uncertainty: float) -> float | None:
        """Share of calibration queries that are less uncertain, in percent; None: not measured."""
        if self.similarity_stds is None:
            return None
        return 100 * bisect_left(self.similarity_stds, uncertainty) / len(self.similarity_stds)

    def outlier_score(self, embeddings: Embeddings) -> NDArray[np.float64]:
        """Compute outlier scores of B queries, (B,); larger is less like the gallery."""
        return self.detector.scores(embeddings)

    def displacement(self, embeddings: Embeddings) -> NDArray[np.float64]:
        """Return the displacement (B,) of B queries by their state as pictures; NaN: not known."""
        if self.picture is None:
            return np.full(len(embeddings), np.nan)
        return self.picture.displacement(embeddings.features)

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
            "assumed_absent": self.assumed_absent,
        }
        return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()

    def outlier_fingerprint(self) -> str:
        """Identifies what is measured of a query's features, and nothing else."""
        digest = hashlib.sha256()
        for part in (self.detector, *([self.picture] if self.picture else [])):
            for name, value in _leaves(part):
                digest.update(f"{name}:{np.shape(value)}:".encode())
                digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def save(self, directory: Path, kind: QueryKind = "image") -> None:
        """Write to ``directory``: numbers as JSON, arrays as NPZ without pickle."""
        numbers_file, arrays_file = FILES[kind]
        arrays: dict[str, NDArray[Any]] = {}
        scalars: dict[str, Any] = {"signals": [*SIGNALS, *OUTLIER_SIGNALS]}
        for name, value in _leaves(self):
            if isinstance(value, np.ndarray):
                arrays[name] = value
            else:
                scalars[name] = dict(value) if isinstance(value, Mapping) else value
        np.savez(directory / arrays_file, **arrays)  # type: ignore[arg-type] # numpy's stub
        with replacing(directory / numbers_file) as partial:  # last: where it is, all of it is
            partial.write_text(json_text(scalars), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path, kind: QueryKind = "image") -> Calibration | None:
        """Read what `save` wrote; None where ``directory`` holds no calibration of that kind."""
        numbers_file, arrays_file = FILES[kind]
        path = directory / numbers_file
        if not path.exists():
            return None
        scalars = json.loads(path.read_text(encoding="utf-8"))
        known = [*SIGNALS, *OUTLIER_SIGNALS]
        if scalars["signals"] != known:
            scalars["outdated"] = OUTDATED
        with np.load(directory / arrays_file, allow_pickle=False) as arrays:
            calibration: Calibration = _assembled(cls, {**scalars, **arrays})
        return calibration


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any part
    """Fields of a dataclass and of the dataclasses in it, with dotted names.

    A part that there need not be, and is not, leaves nothing behind.
    """
    for field in fields(value):
        part = getattr(value, field.name)
        if is_dataclass(part):
            yield from _leaves(part, f"{prefix}{field.name}.")
        elif part is not None or field.default is not None:
            yield prefix + field.name, part


def _assembled(kind: Any, leaves: Mapping[str, Any], prefix: str = "") -> Any:  # noqa: ANN401
    """The dataclass that `_leaves` took apart."""
    hints = get_type_hints(kind)
    parts: dict[str, Any] = {}
    for field in fields(kind):
        name, hint = prefix + field.name, hints[field.name]
        may_lack = field.default is None
        wanted = next(filter(is_dataclass, get_args(hint)), hint) if may_lack else hint
        if is_dataclass(wanted):
            if not may_lack or any(leaf.startswith(f"{name}.") for leaf in leaves):
                parts[field.name] = _assembled(wanted, leaves, f"{name}.")
        elif not may_lack or name in leaves:
            parts[field.name] = leaves[name]
    return kind(**parts)

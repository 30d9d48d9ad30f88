"""The fitted decision layer, and the check whether it is still valid for the searched gallery."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, get_args, get_type_hints
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from model_store.decision.evidence import Evidence, Hierarchy
from model_store.decision.outliers import (
    OUTLIER_SIGNALS,
    DisplacementModel,
    LabelMeans,
    OutlierDetector,
)
from model_store.decision.probabilities import SIGNALS, MatchModel, Recalibration
from model_store.decision.promises import Promises
from model_store.encoder.contract import Embeddings, QueryKind
from model_store.errors import UnknownSource
from model_store.files import json_text, replacing
from model_store.gallery import Gallery
from model_store.messages import Order, message
from model_store.search import N_CANDIDATES

CALIBRATION_FILE = "calibration.json"
ARRAYS_FILE = "calibration.npz"
FILES: Mapping[QueryKind, tuple[str, str]] = {
    "image": (CALIBRATION_FILE, ARRAYS_FILE),
    "text": ("text_calibration.json", "text_calibration.npz"),
}
"""For each kind of query, the two files of a calibration: JSON for numbers, NPZ for arrays."""

DEFAULT_ABSENT = 0.05
"""Default share of absent queries. It is used if the request, the API key, the operator and the
configuration give no share."""

UNKNOWN_CLASS = -1
"""Size class of a label that was added after the calibration. Compaction merges such labels into
the bundle."""

OUTDATED = (
    "An earlier release calibrated this bundle with signals that this release does not compute. "
    "Run `vouch-build upgrade BUNDLES`, which calibrates again if the bundle contains its "
    "calibration queries."
)

_MEANS = "means.directions"
"""Name of the largest array of a calibration, see `LabelMeans`."""

_MOST_PROMISES = 64
"""Maximum number of cached `Promises`; a client may request any combination of share, source, order
and α."""


@dataclass(frozen=True)
class Calibration:
    """The decision layer, fitted on calibration queries of one gallery and one encoder.

    Attributes
    ----------
    encoder_fingerprint : fingerprint of the encoder in the fit. The calibration is valid only for
        this encoder.
    search : search settings of the fit; with other settings the calibration is stale.
    n_candidates : number of items in a query's result list, in the fit and in service.
    n_queries : calibration queries that have a match, without items of the gallery that are
        additional queries; `match_fingerprint` uses it. `n_matched` counts all.
    alpha : default false-alarm rate of the outlier flag.
    coverage : default coverage of result sets.
    max_error : maximum error: share of wrong results among the first items with verdict `match`.
    max_false_match_rate : maximum FPIR, the share of absent queries with verdict `match`; None for
        no limit.
    delta : δ; each guarantee holds with probability 1 − δ over calibrations.
    assumed_absent : share of absent queries that the probabilities were fitted with.
    expected_absent : share of absent queries in the gallery's configuration; None for
        `DEFAULT_ABSENT`.
    order : default order of result lists.
    outlier_scores : (n,) sorted outlier scores of the calibration queries.
    means : mean direction of each label.
    label_classes : (C,) size class of each label by its code, see `SIZE_CLASSES`; `UNKNOWN_CLASS`
        for labels added after the calibration.
    n_labels : (3,) number of labels in each size class; an item without a label counts as a label.
    detector : computes the outlier score.
    match : computes the log-odds of a label: the odds of "this label is the true match" against "no
        match". The input is the signals of the label's nearest item. `choice_probabilities`
        converts the log-odds of all found labels to probabilities.
    feedback : correction of match probabilities by user feedback.
    evidence : outcome of each calibration query; all guarantees are computed from it.
    quality_limits : limits for `model_store.images.quality.quality_hints`.
    report : description of the fit and of its measured performance, for readers.
    hierarchy : parents of labels, for roll-up; None if labels have no parents.
    within : maximum distance in metres from a query to a true match; None if a true match is an
        item with the same label.
    decrease : (2,) exponents of `decreased`: how probably an item is a true match if the first
        item of a place near it is one. None if labels define matches.
    similarity_stds : (n,) sorted `Assessment.uncertainty` of the calibration queries; None in
        bundles of earlier releases, which measured another uncertainty.
    picture : predicts how degraded a picture is; None for vectors and texts, and in bundles of
        earlier releases.
    absent_outlier_scores : (n,) sorted outlier scores of the absent calibration queries; None in
        bundles of earlier releases.
    largest_similarity : largest similarity between a calibration query with a match and its nearest
        item; None in bundles of earlier releases.
    outdated : reason why the calibration is not used: another release fitted it to other signals. A
        new calibration of the gallery uses the settings of this calibration. None if this release
        uses the same signals.
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
    match: MatchModel
    feedback: Recalibration
    evidence: Evidence
    quality_limits: Mapping[str, float]
    report: Mapping[str, Any]
    hierarchy: Hierarchy | None = None
    within: float | None = None
    decrease: NDArray[np.float64] | None = None
    similarity_stds: NDArray[np.float64] | None = None
    picture: DisplacementModel | None = None
    absent_outlier_scores: NDArray[np.float64] | None = None
    largest_similarity: float | None = None
    outdated: str | None = None

    @property
    def default_share(self) -> float:
        """The default share of absent queries.

        It is used if the request, the API key and the operator state no share.
        """
        return DEFAULT_ABSENT if self.expected_absent is None else self.expected_absent

    @property
    def estimate_is_hint(self) -> bool:
        """True if the estimated share of absent queries may be far from the true share.

        The estimate is not reliable if the absent calibration queries are views of hidden items.
        """
        return self.evidence.absence == "near_misses_of_views"

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources of calibration queries; empty if no source is known."""
        names = tuple(self.evidence.source_names)
        return () if names == ("",) else names

    def promises(
        self,
        expected_absent: float | None = None,
        source: str | None = None,
        order: Order | None = None,
        alpha: float | None = None,
    ) -> Promises:
        """Return the guarantees for a stream with a given source and share of absent queries.

        Parameters
        ----------
        expected_absent : share of absent queries; None for the default.
        source : source of the calibration queries; None for all sources.
        order : order of the result lists; None for the default.
        alpha : false-alarm rate of the outlier flag; None for the default.

        Raises
        ------
        UnknownSource : no calibration query has this source.
        """
        share = self.default_share if expected_absent is None else expected_absent
        order, alpha = order or self.order, self.alpha if alpha is None else alpha
        return self._promises(share, source, order, alpha)

    def _compute_promises(
        self, share: float, source: str | None, order: Order, alpha: float
    ) -> Promises:
        if source is not None and source not in self.sources:
            known = ", ".join(map(repr, self.sources)) or "none: no source was given to calibrate"
            raise UnknownSource(
                f"No calibration query has the source {source!r}. Known sources: {known}."
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
    def _promises(self) -> Callable[[float, str | None, Order, float], Promises]:
        # A bound method would make a cycle of references, which `freeze_garbage` would keep.
        return lru_cache(_MOST_PROMISES)(partial(Calibration._compute_promises, proxy(self)))

    @cached_property
    def n_matched(self) -> int:
        """The number of calibration queries with a match, including items of the gallery."""
        return int((~self.evidence.absent).sum())

    def classes_of(self, label_codes: NDArray[np.int32]) -> NDArray[np.int8]:
        """Return the size classes (g,) of the labels that have the given codes (g,).

        An unknown label (added after the calibration, or −1) is in the class of labels with one
        item.
        """
        classes: NDArray[np.int8] = np.maximum(self.known_classes(label_codes), 0)
        return classes

    def known_classes(self, label_codes: NDArray[np.int32]) -> NDArray[np.int8]:
        """Return the size classes (g,) of labels, with `UNKNOWN_CLASS` for unknown labels."""
        known = (label_codes >= 0) & (label_codes < len(self.label_classes))
        if known.all():
            return self.label_classes[label_codes]
        classes = np.full(len(label_codes), UNKNOWN_CLASS, dtype=np.int8)
        classes[known] = self.label_classes[label_codes[known]]
        return classes

    def n_new_labels(self, n_labels: int) -> int:
        """Return how many of the gallery's ``n_labels`` labels were added after the calibration.

        If matches are defined by distance, labels have no effect, and the number is 0.
        """
        if self.within is not None:
            return 0
        n_later = max(n_labels - len(self.label_classes), 0)
        return n_later + int((self.label_classes == UNKNOWN_CLASS).sum())

    def uncertainty_percentile(self, uncertainty: float) -> float | None:
        """Percentage of calibration queries with a smaller uncertainty; None if not measured."""
        if self.similarity_stds is None:
            return None
        return 100 * bisect_left(self.similarity_stds, uncertainty) / len(self.similarity_stds)

    def outlier_score(self, embeddings: Embeddings) -> NDArray[np.float64]:
        """Compute outlier scores (B,) of B queries; a larger score is more unusual."""
        return self.detector.scores(embeddings)

    def displacement(self, embeddings: Embeddings) -> NDArray[np.float64]:
        """Return `DisplacementModel.displacement` (B,) of B queries; NaN if it is not known."""
        if self.picture is None:
            return np.full(len(embeddings), np.nan)
        return self.picture.displacement(embeddings.features)

    def outlier_p_value(self, score: float) -> float:
        """Return the conformal p-value (1 + #{calibration scores ≥ score}) / (n + 1)."""
        n = len(self.outlier_scores)
        at_least = n - bisect_left(self.outlier_scores, score)
        return (1 + at_least) / (n + 1)

    @cached_property
    def match_fingerprint(self) -> str:
        """A digest of the settings that determine uncorrected match probabilities.

        Feedback refers to the probabilities of one calibration. Another calibration uses this
        feedback only if both calibrations have the same digest. The fitted numbers are not hashed,
        because a new fit to the same queries changes the rounding of these numbers.
        """
        origin = {
            "encoder": self.encoder_fingerprint,
            "search": dict(self.search),
            "signals": [*SIGNALS, *OUTLIER_SIGNALS],
            "n_queries": self.n_queries,
            "assumed_absent": self.assumed_absent,
        }
        if self.match.presence is not None:  # without it, the digest is that of earlier releases
            origin["presence"] = "apart"
        return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()

    def outlier_fingerprint(self) -> str:
        """Return a digest of the parts that use a query's features: `detector` and `picture`."""
        digest = hashlib.sha256()
        for part in (self.detector, *([self.picture] if self.picture else [])):
            for name, value in _leaves(part):
                digest.update(f"{name}:{np.shape(value)}:".encode())
                digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def save(self, directory: Path, kind: QueryKind = "image") -> None:
        """Write the calibration to ``directory``: numbers as JSON, arrays as NPZ without pickle."""
        numbers_file, arrays_file = FILES[kind]
        arrays: dict[str, NDArray[Any]] = {}
        scalars: dict[str, Any] = {"signals": [*SIGNALS, *OUTLIER_SIGNALS]}
        for name, value in _leaves(self):
            if isinstance(value, np.ndarray):
                arrays[name] = value
            else:
                scalars[name] = dict(value) if isinstance(value, Mapping) else value
        np.savez(directory / arrays_file, **arrays)  # type: ignore[arg-type] # numpy's stub
        with replacing(directory / numbers_file) as partial:  # the second of both files
            partial.write_text(json_text(scalars), encoding="utf-8")

    @classmethod
    def load(
        cls, directory: Path, kind: QueryKind = "image", *, with_means: bool = True
    ) -> Calibration | None:
        """Read the files that `save` wrote; None if there is no calibration for this kind.

        Parameters
        ----------
        with_means : whether to read the means of the labels, which are large. Only answers need
            them.
        """
        numbers_file, arrays_file = FILES[kind]
        path = directory / numbers_file
        if not path.exists():
            return None
        scalars = json.loads(path.read_text(encoding="utf-8"))
        known = [*SIGNALS, *OUTLIER_SIGNALS]
        if scalars["signals"] != known:
            scalars["outdated"] = OUTDATED
        with np.load(directory / arrays_file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files if with_means or name != _MEANS}
        if not with_means:
            arrays[_MEANS] = np.zeros((0, 0), np.float32)
        calibration: Calibration = _assembled(cls, {**scalars, **arrays})
        return calibration


def written_at(directory: Path, kind: QueryKind = "image") -> datetime:
    """Return the time when a calibration was written, from the modification time of its file.

    A bundle contains no dates. In a copied bundle, it may be the time of the copy.

    Raises
    ------
    FileNotFoundError : there is no calibration for this kind.
    """
    numbers_file, _ = FILES[kind]
    return datetime.fromtimestamp((directory / numbers_file).stat().st_mtime, UTC)


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any part
    """Yield the fields of a dataclass and of its nested dataclasses, with dotted names.

    An optional field that is None is left out.
    """
    for field in fields(value):
        part = getattr(value, field.name)
        if is_dataclass(part):
            yield from _leaves(part, f"{prefix}{field.name}.")
        elif part is not None or field.default is not None:
            yield prefix + field.name, part


def _assembled(kind: Any, leaves: Mapping[str, Any], prefix: str = "") -> Any:  # noqa: ANN401
    """Rebuild a dataclass from the fields that `_leaves` has yielded."""
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


def search_settings(gallery: Gallery) -> dict[str, Any]:
    """Return the search settings that a calibration depends on, besides the encoder."""
    return {
        "index": gallery.index_type,
        "n_items": gallery.n_items,
        "n_candidates": N_CANDIDATES,
        "n_changed": gallery.n_changed,
    }


def n_gone_labels(calibration: Calibration, gallery: Gallery) -> int:
    """Return the number of calibrated labels that no longer have an item.

    If items have changed since the calibration, the function reads the label of every item.
    """
    before = int({"n_changed": 0, **calibration.search}["n_changed"])
    if gallery.n_changed == before or not gallery.labels or calibration.within is not None:
        return 0
    codes = gallery.label_codes(gallery.rows())
    counts = np.bincount(codes[codes >= 0], minlength=len(calibration.label_classes))
    known = calibration.label_classes != UNKNOWN_CLASS
    return int((known & (counts[: len(known)] == 0)).sum())


TOLERATED_CHANGES = 0.1
"""Maximum share of the calibrated items that may change before the calibration is stale. A few
changed items hardly affect the probabilities. Any change of the index type or of the number of
candidates makes the calibration stale."""


def staleness(calibration: Calibration, gallery: Gallery, kind: QueryKind = "image") -> str | None:
    """Return the reason why the calibration is not valid for the gallery; None if it is valid.

    Parameters
    ----------
    kind : the kind of queries that the calibration is for.
    """
    if calibration.outdated is not None:
        return calibration.outdated
    settings, calibrated = search_settings(gallery), {"n_changed": 0, **calibration.search}
    n_calibrated = int(calibrated["n_items"])
    n_changed = gallery.n_changed - int(calibrated["n_changed"])
    built = settings | {name: calibrated[name] for name in ("n_items", "n_changed")}
    again = "calibrate_again" if kind == "image" else "calibrate_texts_again"
    if kind == "image" and calibration.within is not None:
        again = "calibrate_places_again"
    advice = message(again if gallery.is_local else "build_again")
    if calibrated != built or abs(gallery.n_items - n_calibrated) > n_changed:
        return message("search_changed", calibrated=calibrated, searched=settings, advice=advice)
    if n_changed > TOLERATED_CHANGES * n_calibrated:
        return message(
            "items_changed",
            n_changed=n_changed,
            n_calibrated=n_calibrated,
            tolerated=round(100 * TOLERATED_CHANGES),
            advice=advice,
        )
    return None

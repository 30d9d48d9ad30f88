"""Queries that were embedded, or answered, by another system: vectors in place of images.

A vector is one of the gallery's own encoder. Where the gallery was made of vectors, it is one of
what made those, and the gallery's encoder takes it as it would take an image. `decide_list` decides
on neighbours that another store found, a vector database for example: nothing of the gallery is
searched, and of its bundle only the calibration is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Decision, Retrieved, Terms, decide
from model_store.encoder.contract import Embeddings
from model_store.encoder.vector_input import VectorInput
from model_store.errors import InvalidVector
from model_store.predictive import Predictive
from model_store.retriever import Retriever

Floats = NDArray[np.float64]

_ROUNDING = 1e-5
"""A cosine of float32 vectors may be so much larger than 1, or than the one before it."""


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """A query as the gallery's encoder has embedded it, elsewhere; or as that encoder takes it.

    Attributes
    ----------
    mean : (D,) of the embedding, of any length but zero.
    variance : (D,) of it, in squared units of ``mean``; None for zero.
    features : (F,) penultimate activations, which the outlier score is computed from.
    outlier_score : in their place, where it is known: `Predictive.outlier_score`.
    fingerprint : of the encoder; None if unknown.

    Examples
    --------
    >>> query = VectorQuery(mean=[0.6, 0.8], variance=[0.01, 0.02], outlier_score=0.3)
    """

    mean: Sequence[float] | NDArray[np.floating[Any]]
    variance: Sequence[float] | NDArray[np.floating[Any]] | None = None
    features: Sequence[float] | NDArray[np.floating[Any]] | None = None
    outlier_score: float | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class NeighbourList:
    """The items that another store found nearest to a query, nearest first.

    Attributes
    ----------
    ids : (n,) of the items.
    labels : (n,) None where an item has none.
    similarities : (n,) cosines; None where ``vectors`` are given.
    vectors : (n, D) of the items.

    Examples
    --------
    >>> neighbours = NeighbourList(["a", "b"], ["cat", None], similarities=[0.9, 0.7])
    """

    ids: Sequence[str]
    labels: Sequence[str | None]
    similarities: Sequence[float] | Floats | None = None
    vectors: Sequence[Sequence[float]] | NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True, slots=True)
class ListDecision:
    """The decision on a list of neighbours.

    Attributes
    ----------
    decision : its probabilities are those of the neighbours, in their order.
    predictive : of the query.
    similarities : (n,) of the neighbours.
    """

    decision: Decision
    predictive: Predictive
    similarities: Floats


def predictive_of(retriever: Retriever, query: VectorQuery) -> Predictive:
    """Return the predictive distribution of a query, as of an image with this embedding.

    Raises
    ------
    InvalidVector : it is of another encoder, of another length, or has no direction; or the gallery
        is calibrated, and neither features nor an outlier score are given.
    """
    encoder = retriever.encoder
    if query.fingerprint is not None and query.fingerprint != encoder.fingerprint:
        raise InvalidVector(
            f"The vector is of the encoder {query.fingerprint[:12]}, the gallery's is "
            f"{encoder.fingerprint[:12]}: their vectors have nothing in common."
        )
    taken = encoder.metadata.input
    if isinstance(taken, VectorInput):
        embeddings = encoder.encode(_row(query, taken)[None])
    else:
        embeddings = _as_embedded(query, retriever)
    scores = None if query.outlier_score is None else np.array([query.outlier_score])
    return retriever.predictives(embeddings, scores)[0]


def decide_list(
    retriever: Retriever, query: VectorQuery, neighbours: NeighbourList, terms: Terms
) -> ListDecision:
    """Decide on the neighbours of a query that another store has found in the same gallery.

    The probabilities are those that `Retriever.find` gives to the same list. Labels that came after
    the calibration are unknown to it, as in a search.

    Raises
    ------
    InvalidVector : see `predictive_of`; or the list is too short, out of order, or names an item
        twice.
    UnknownSource : no calibration query comes from the source that the terms name.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = bundle.retriever.search(Path("photo.png").read_bytes(), limit=200)
    >>> found = answer.predictive
    >>> query = VectorQuery(found.direction, found.variance, outlier_score=found.outlier_score)
    >>> ids = [match.item.id for match in answer.matches]
    >>> labels = [match.item.label for match in answer.matches]
    >>> similarities = [match.similarity for match in answer.matches]
    >>> neighbours = NeighbourList(ids, labels, similarities)
    >>> decision = decide_list(bundle.retriever, query, neighbours, Terms(alpha=0.05))
    """
    predictive = predictive_of(retriever, query)
    similarities = _similarities(neighbours, predictive.direction)
    _require_list(neighbours, similarities, retriever)
    calibration = retriever.calibration
    n = len(similarities)
    n_listed = n if calibration is None else min(n, calibration.n_candidates)
    hierarchy = None if calibration is None else calibration.hierarchy
    retrieved = Retrieved(
        similarities,
        _label_codes(retriever, neighbours.labels),
        n_listed,
        np.arange(n),
        parents=None if hierarchy is None else hierarchy.of_labels(neighbours.labels),
    )
    return ListDecision(decide(calibration, predictive, retrieved, terms), predictive, similarities)


def _as_embedded(query: VectorQuery, retriever: Retriever) -> Embeddings:
    """Return what an encoder of images has made elsewhere.

    Raises
    ------
    InvalidVector : see `predictive_of`.
    """
    encoder, features = retriever.encoder, query.features
    mean, variance = _mean(query.mean, encoder.dim), _variance(query.variance, encoder.dim)
    if features is None and encoder.metadata.posterior == "deterministic":
        # Without a posterior and a last layer, an embedding is its features.
        features = mean if encoder.n_features == encoder.dim else None
    if retriever.calibration is not None and features is None and query.outlier_score is None:
        raise InvalidVector(
            "Outliers are detected by their features: give `features` "
            f"({encoder.n_features} numbers), or the `outlier_score` that `embed` answers with."
        )
    known = np.zeros(encoder.n_features, np.float32)
    if features is not None:
        known = _vector("features", features, encoder.n_features)
    return Embeddings(mean[None], variance[None], known[None])


def _row(query: VectorQuery, taken: VectorInput) -> NDArray[np.float32]:
    """Return a query as an encoder of vectors takes it; a variance that is not given is zero.

    Raises
    ------
    InvalidVector : it lacks features that the vectors of the gallery have, or has what they lack.
    """
    made = f"The vectors of {taken.made_by!r} that the gallery was made of have"
    for name, given, size in (
        ("variance", query.variance, taken.sizes[1]),
        ("features", query.features, taken.sizes[2]),
    ):
        if given is not None and not size:
            raise InvalidVector(f"{made} no `{name}`. Leave it out: nothing is known of any.")
    parts = [_mean(query.mean, taken.dim)]
    if taken.with_variance:
        parts.append(_variance(query.variance, taken.dim))
    if taken.n_features is not None:
        if query.features is None:
            raise InvalidVector(f"{made} `features` too: give them ({taken.n_features} numbers).")
        parts.append(_vector("features", query.features, taken.n_features))
    return np.concatenate(parts)


def _mean(values: Sequence[float] | NDArray[np.floating[Any]], dim: int) -> NDArray[np.float32]:
    mean = _vector("mean", values, dim)
    if not mean.any():
        raise InvalidVector("The vector `mean` is zero: it has no direction.")
    return mean


def _variance(
    values: Sequence[float] | NDArray[np.floating[Any]] | None, dim: int
) -> NDArray[np.float32]:
    if values is None:
        return np.zeros(dim, np.float32)
    variance = _vector("variance", values, dim)
    if (variance < 0).any():
        raise InvalidVector("The vector `variance` has negative numbers.")
    return variance


def _vector(
    name: str, values: Sequence[float] | NDArray[np.floating[Any]], length: int
) -> NDArray[np.float32]:
    vector = np.asarray(values, np.float32)
    if vector.shape != (length,):
        raise InvalidVector(
            f"The vector `{name}` has the shape {vector.shape}, wanted ({length},): that of the "
            "gallery's encoder."
        )
    if not np.isfinite(vector).all():
        place = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise InvalidVector(f"The vector `{name}` has {vector[place]} at place {place}.")
    return vector


def _similarities(neighbours: NeighbourList, direction: NDArray[np.float32]) -> Floats:
    """Return the neighbours' cosines, computed where vectors are given."""
    n = len(neighbours.ids)
    given = neighbours.similarities is not None, neighbours.vectors is not None
    if sum(given) != 1 or len(neighbours.labels) != n:
        raise InvalidVector(
            "Each neighbour has an id, a label (or null), and either a similarity or a vector."
        )
    if neighbours.vectors is None:
        similarities = np.asarray(neighbours.similarities, np.float64)
        wrong = ~(np.abs(similarities) <= 1 + _ROUNDING)
    else:
        vectors = np.asarray(neighbours.vectors, np.float64)
        if vectors.shape != (n, len(direction)):
            raise InvalidVector(
                f"The neighbours' vectors have the shape {vectors.shape}, wanted "
                f"{(n, len(direction))}."
            )
        similarities = cosines_of(vectors, direction)
        wrong = ~np.isfinite(similarities)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        raise InvalidVector(
            f"Neighbour {place} ({neighbours.ids[place]!r}) has no cosine similarity: "
            f"{similarities[place]}. Wanted −1 to 1, or a vector that is finite and not zero."
        )
    return np.clip(similarities, -1.0, 1.0)


def cosines_of(vectors: Floats, direction: NDArray[np.float32]) -> Floats:
    """Return the cosine (n,) of each of ``vectors`` (n, D) with a direction; NaN of a zero one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Floats = vectors @ direction / np.sqrt((vectors * vectors).sum(1))
    return cosines


def _require_list(neighbours: NeighbourList, similarities: Floats, retriever: Retriever) -> None:
    """Refuse a list that is none, or that is shorter than those the calibration was fitted to."""
    n = len(similarities)
    if n == 0:
        raise InvalidVector("There are no neighbours to decide on.")
    seen: set[str] = set()
    for name in neighbours.ids:
        if name in seen:
            raise InvalidVector(f"The neighbour {name!r} is in the list twice.")
        seen.add(name)
    rising = np.flatnonzero(np.diff(similarities) > _ROUNDING)
    if len(rising):
        place = int(rising[0]) + 1
        raise InvalidVector(
            f"Neighbour {place} is nearer ({similarities[place]:.6f}) than the one before it "
            f"({similarities[place - 1]:.6f}). Send them nearest first, by cosine."
        )
    if retriever.calibration is not None and n < retriever.calibration.n_candidates:
        raise InvalidVector(
            f"The list has {n} neighbours; the calibration was fitted to lists of "
            f"{retriever.calibration.n_candidates}, and says nothing of shorter ones. Send so many."
        )


def _label_codes(retriever: Retriever, labels: Sequence[str | None]) -> NDArray[np.int32]:
    """Return the labels' codes (n,): −1 for none, a new one for each later label."""
    calibration = retriever.calibration
    names = retriever.gallery.labels
    n_known = len(names) if calibration is None else len(calibration.means.directions)
    codes: dict[str | None, int] = {None: -1}
    n_unknown = 0
    for label in labels:
        if label is None or label in codes:
            continue
        place = bisect_left(names, label, 0, n_known)
        if place < n_known and names[place] == label:
            codes[label] = place
        else:
            codes[label] = n_known + n_unknown
            n_unknown += 1
    return np.array([codes[label] for label in labels], np.int32)

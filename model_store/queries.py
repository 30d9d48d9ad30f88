"""Vectors and texts as queries, and the canary.

A query vector must come from the gallery's encoder: another system has embedded the image. If the
gallery was made of vectors, the query vector must come from the encoder of these vectors, and is
processed like an image. `decide_list` decides on neighbours that another store has found, for
example a vector database. `decide_list` uses only the calibration of the gallery's bundle, and does
not search the gallery.

Text queries need an encoder with a text encoder. They have the same search with a separate
calibration. The calibration of images is not valid for texts, because their similarities have
another distribution.

The canary is a query that shows whether a gallery answers, for the service and for `doctor`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from model_store.answers import Answer
from model_store.decision import Decision, Retrieved, Terms, decide
from model_store.encoder.contract import Embeddings, TextEncoder, VectorInput
from model_store.errors import (
    EncodingFailed,
    InvalidText,
    InvalidVector,
    NoEmbedding,
    TextUnavailable,
)
from model_store.images import encode_thumbnail
from model_store.messages import MAX_TEXT_CHARACTERS
from model_store.predictive import Predictive
from model_store.retriever import FindOptions, Retriever

Floats = NDArray[np.float64]

_ROUNDING = 1e-5
"""Rounding tolerance: a float32 cosine may exceed 1 by at most this value. A list of cosines must
be in descending order, but a cosine may exceed the preceding cosine by this value."""


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """The embedding of a query, or its input vector if the gallery was made of vectors.

    Attributes
    ----------
    mean : (D,) mean of the embedding, of any non-zero length.
    variance : (D,) variance of the embedding, in squared units of ``mean``; None for a variance of
        zero.
    features : (F,) penultimate activations, to compute the outlier score.
    outlier_score : `Predictive.outlier_score`, if it is already known; it replaces ``features``.
    fingerprint : fingerprint of the encoder; None if unknown.

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
    """The neighbours of a query from another store, nearest first.

    Attributes
    ----------
    ids : (n,) ids of the items.
    labels : (n,) labels of the items; None for an item without a label.
    similarities : (n,) cosines; None if ``vectors`` are given.
    vectors : (n, D) vectors of the items.

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
    decision : decision, with the probabilities of the neighbours in the order of the list.
    predictive : predictive distribution of the query.
    similarities : (n,) similarities of the neighbours.
    """

    decision: Decision
    predictive: Predictive
    similarities: Floats


def predictive_of(retriever: Retriever, query: VectorQuery) -> Predictive:
    """Return the predictive distribution of a query with this embedding.

    Raises
    ------
    InvalidVector : the vector is from another encoder, has another length, or is zero. The error is
        also raised if the gallery is calibrated, but the query has neither features nor an outlier
        score.
    """
    encoder = retriever.encoder
    if query.fingerprint is not None and query.fingerprint != encoder.fingerprint:
        raise InvalidVector(
            f"The vector is from the encoder {query.fingerprint[:12]}, the gallery has the encoder "
            f"{encoder.fingerprint[:12]}. Vectors of different encoders cannot be compared."
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
    """Decide on neighbours that another store has found for a query in the same gallery.

    For the same list, `Retriever.find` gives the same probabilities. As in a search, labels that
    were added after the calibration are unknown.

    Raises
    ------
    InvalidVector : `predictive_of` refuses the query. This error is also raised if the list is too
        short, is not in order, or contains an item twice.
    UnknownSource : no calibration query has the source in ``terms``.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = bundle.retriever.search(Path("photo.png").read_bytes(), limit=200)
    >>> found = answer.predictive
    >>> query = VectorQuery(found.direction, found.variance, outlier_score=found.outlier_score)
    >>> ids = [match.id for match in answer.matches]
    >>> labels = [match.label for match in answer.matches]
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
    """Convert a vector from an encoder of images to embeddings.

    Raises
    ------
    InvalidVector : see `predictive_of`.
    """
    encoder, features = retriever.encoder, query.features
    mean, variance = _mean(query.mean, encoder.dim), _variance(query.variance, encoder.dim)
    if features is None and encoder.metadata.posterior == "deterministic":
        # The encoder has no last layer, so the embedding also serves as the features.
        features = mean if encoder.n_features == encoder.dim else None
    if retriever.calibration is not None and features is None and query.outlier_score is None:
        raise InvalidVector(
            "The detection of outliers needs features. Send `features` "
            f"({encoder.n_features} numbers), or the `outlier_score` from `embed`."
        )
    known = np.zeros(encoder.n_features, np.float32)
    if features is not None:
        known = _vector("features", features, encoder.n_features)
    return Embeddings(mean[None], variance[None], known[None])


def _row(query: VectorQuery, taken: VectorInput) -> NDArray[np.float32]:
    """Convert a query to the input of the encoder of vectors; a missing variance is zero.

    Raises
    ------
    InvalidVector : the query lacks a part that the gallery's vectors have, or has a part that these
        vectors lack.
    """
    made = f"The gallery was made of vectors of {taken.made_by!r} that have"
    for name, given, size in (
        ("variance", query.variance, taken.sizes[1]),
        ("features", query.features, taken.sizes[2]),
    ):
        if given is not None and not size:
            raise InvalidVector(f"{made} no `{name}`. Omit `{name}`.")
    parts = [_mean(query.mean, taken.dim)]
    if taken.with_variance:
        parts.append(_variance(query.variance, taken.dim))
    if taken.n_features is not None:
        if query.features is None:
            raise InvalidVector(f"{made} `features`. Send {taken.n_features} `features`.")
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
            f"The vector `{name}` has the shape {vector.shape}, wanted ({length},), the shape "
            "from the gallery's encoder."
        )
    if not np.isfinite(vector).all():
        place = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise InvalidVector(f"The vector `{name}` has {vector[place]} at place {place}.")
    return vector


def _similarities(neighbours: NeighbourList, direction: NDArray[np.float32]) -> Floats:
    """Return the neighbours' cosines, which are given or computed from vectors."""
    n = len(neighbours.ids)
    given = neighbours.similarities is not None, neighbours.vectors is not None
    if sum(given) != 1 or len(neighbours.labels) != n:
        raise InvalidVector(
            "Each neighbour must have an id, a label (or null), and a similarity or a vector."
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
            f"{similarities[place]}. Send a cosine from −1 to 1, or a finite non-zero vector."
        )
    return np.clip(similarities, -1.0, 1.0)


def cosines_of(vectors: Floats, direction: NDArray[np.float32]) -> Floats:
    """Return the cosines (n,) of ``vectors`` (n, D) with a direction; NaN for a zero vector."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Floats = vectors @ direction / np.sqrt((vectors * vectors).sum(1))
    return cosines


def _require_list(neighbours: NeighbourList, similarities: Floats, retriever: Retriever) -> None:
    """Refuse an empty list, or a list shorter than the calibration's lists."""
    n = len(similarities)
    if n == 0:
        raise InvalidVector("The list of neighbours is empty. Send at least one neighbour.")
    seen: set[str] = set()
    for name in neighbours.ids:
        if name in seen:
            raise InvalidVector(f"The neighbour {name!r} is in the list twice.")
        seen.add(name)
    rising = np.flatnonzero(np.diff(similarities) > _ROUNDING)
    if len(rising):
        place = int(rising[0]) + 1
        raise InvalidVector(
            f"Neighbour {place} is nearer ({similarities[place]:.6f}) than the neighbour before "
            f"it ({similarities[place - 1]:.6f}). Send the nearest neighbour first, by cosine."
        )
    if retriever.calibration is not None and n < retriever.calibration.n_candidates:
        raise InvalidVector(
            f"The list has {n} neighbours, but the calibration needs at least "
            f"{retriever.calibration.n_candidates}. Send more neighbours."
        )


def _label_codes(retriever: Retriever, labels: Sequence[str | None]) -> NDArray[np.int32]:
    """Return the label codes (n,): −1 without a label, and a new code for each unknown label."""
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


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """A text as a query.

    Attributes
    ----------
    predictive : predictive distribution of the text. The distribution has no uncertainty if the
        text encoder gives no variance.
    n_tokens : number of tokens that were used, including the start and end tokens.
    warnings : sentences about the text, for example if it was cut.
    """

    predictive: Predictive
    n_tokens: int
    warnings: tuple[str, ...]


def text_encoder(retriever: Retriever) -> TextEncoder:
    """Return the text encoder.

    Raises
    ------
    TextUnavailable : there is none.
    """
    if retriever.text is None:
        raise TextUnavailable(
            "The gallery's encoder has no text encoder, so text queries are not possible. Send an "
            "image, or index the gallery with an encoder from "
            "`vouch-build encoder --open-clip … --text` or `--hf … --text`."
        )
    return retriever.text


def embed_text(retriever: Retriever, text: str) -> EmbeddedText:
    """Embed a text as a query.

    Raises
    ------
    TextUnavailable : the gallery has no text encoder, or its libraries are not installed.
    InvalidText : the text is empty, longer than `MAX_TEXT_CHARACTERS`, or has invalid characters.
    """
    encoder = text_encoder(retriever)
    _require_words(text)
    tokens = encoder.tokenize([text])
    predictive = retriever.for_kind("text").predictives(encoder.encode(tokens))[0]
    cut = (
        f"The encoder reads at most {encoder.context_length} tokens. The text has more tokens, so "
        "its end was ignored. Use fewer words."
    )
    warnings = (cut,) if tokens.truncated[0] else ()
    return EmbeddedText(predictive, int(tokens.mask[0].sum()), warnings)


def text_id(text: str) -> str:
    """Return the id of a text query: a hash of the text."""
    return hashlib.sha256(b"text" + text.encode(errors="surrogatepass")).hexdigest()


def search_text(
    retriever: Retriever,
    text: str,
    limit: int = 10,
    **options: Unpack[FindOptions],
) -> Answer:
    """Search with a text; options as in `Retriever.find`.

    The verdict is ``not_calibrated`` until `vouch-build calibrate BUNDLES --captions` has run.

    Raises
    ------
    TextUnavailable, InvalidText : see `embed_text`.
    OrderUnavailable : the gallery is not calibrated for texts, so there are no probabilities for
        the order.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = search_text(bundle.retriever, "a red chair", limit=5)
    """
    return retriever.find(embed_text(retriever, text).predictive, limit, **options)


def _require_words(text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidText(
            f"The text has {len(text):,} characters; at most {MAX_TEXT_CHARACTERS:,} are allowed. "
            "Describe the image in one sentence."
        )
    if not text.strip():
        raise InvalidText("The text is empty. Describe the image in a few words.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # an unpaired surrogate, which JSON can contain
        raise InvalidText(
            f"The text has an invalid character at position {error.start}. Send valid Unicode."
        ) from error


CANARY_PICTURE, _ = encode_thumbnail(
    np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
)
"""An image file of random pixels. A usable encoder may have no embedding of a picture of a single
colour, for example if it divides by the standard deviation of the pixels."""


def canary_vector(expected: VectorInput) -> NDArray[Any]:
    """Return the canary (n,) of an encoder of vectors: ones, because zeros have no direction."""
    return np.ones(expected.shape, expected.dtype)


def answer_canary(retriever: Retriever) -> None:
    """Search with the canary.

    Raises
    ------
    EncodingFailed : the encoder has no usable embedding of the canary.
    """
    expected = retriever.encoder.metadata.input
    if isinstance(expected, VectorInput):
        retriever.find(retriever.embed(canary_vector(expected)[None])[0], 1)
    else:
        retriever.search(CANARY_PICTURE, 1)


@contextmanager
def embedding_canary(name: str) -> Iterator[None]:
    """Name the gallery whose encoder cannot embed the canary.

    Raises
    ------
    EncodingFailed : the same error, with the ``name`` of the gallery.
    """
    try:
        yield
    except EncodingFailed as error:
        why = str(error).removesuffix(".")
        if isinstance(error, NoEmbedding):  # whose text advises to send another image
            why = "Its embedding is not finite, or zero"
        raise EncodingFailed(
            f"The encoder of the gallery {name!r} cannot embed a test image. {why}. Use another "
            "encoder, or export this encoder again."
        ) from error

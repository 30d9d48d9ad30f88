"""The entry point of library and service: computes the answer to a query."""

from __future__ import annotations

import math
import time
from copy import copy
from functools import cached_property, lru_cache
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from model_store.answers import Answer, matches_of
from model_store.decision import (
    Calibration,
    FilterMeans,
    Retrieved,
    Terms,
    decide,
    decide_without_items,
)
from model_store.decision.calibration import n_gone_labels, staleness
from model_store.encoder.contract import Embeddings, Encoder, Inputs, QueryKind, TextEncoder
from model_store.errors import BundleMismatch, OrderUnavailable
from model_store.gallery import Allowed, Filter, Gallery
from model_store.images import DecodedImage, decode_image
from model_store.messages import Order, message
from model_store.predictive import (
    INDEPENDENT,
    N_SAMPLES,
    Correlation,
    Noise,
    Predictive,
    correlation_of,
    predict,
)
from model_store.records import Explanation
from model_store.search import (
    EVERYTHING,
    N_CANDIDATES,
    Diversity,
    Neighbours,
    pair_uncertainty,
    reordered,
    two_stage_search,
)
from model_store.sphere import base_noise
from model_store.truth import place_codes, positions_of

DEFAULT_ALPHA = 0.05
"""False-alarm rate of the outlier flag if neither the request nor a calibration states a rate."""


_noise_of = lru_cache(maxsize=16)(base_noise)
"""Cached noise; all galleries of one encoder share it."""


class FindOptions(TypedDict, total=False):
    """The options of every search, see `Retriever.find`."""

    alpha: float | None
    coverage: float | None
    where: Filter | None
    diversity: Diversity
    expected_absent: float | None
    source: str | None
    filter_means: FilterMeans
    order: Order | None


class Retriever:
    """An encoder, a gallery and a decision layer.

    Parameters
    ----------
    calibration : calibration of image queries. Without a calibration, probabilities are None.
    text : text encoder, or None.
    text_calibration : calibration of text queries, or None.

    Attributes
    ----------
    kind : kind of the queries for ``calibration``.
    stale : reason why the calibration is not valid for this gallery; None if it is valid.

    Raises
    ------
    BundleMismatch : the gallery, a calibration or the text encoder was made with another encoder.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = bundle.retriever.search(Path("photo.png").read_bytes(), limit=10)
    >>> similar = bundle.retriever.search(Path("photo.png").read_bytes(), alpha=0.05)
    """

    def __init__(
        self,
        encoder: Encoder,
        gallery: Gallery,
        calibration: Calibration | None,
        text: TextEncoder | None = None,
        text_calibration: Calibration | None = None,
    ) -> None:
        require_one_encoder(encoder, gallery, calibration, text, text_calibration)
        self.encoder = encoder
        self.gallery: Gallery = gallery
        self.calibration = calibration
        self.text = text
        self.kind: QueryKind = "image"
        self._checked: tuple[tuple[str, int, int], str | None] | None = None
        self._calibrations = {"image": calibration, "text": text_calibration}
        self._noise = Noise(
            _noise_of(encoder.fingerprint, N_SAMPLES, encoder.dim),
            _noise_of(f"{encoder.fingerprint}, items", N_SAMPLES, N_CANDIDATES),
        )

    def with_gallery(self, gallery: Gallery) -> Retriever:
        """Return a copy of the retriever with another state of the gallery."""
        return self._with(gallery=gallery)

    def for_kind(self, kind: QueryKind) -> Retriever:
        """Return a copy of the retriever with the calibration for a kind of queries."""
        if kind == self.kind:
            return self
        return self._with(kind=kind, calibration=self._calibrations[kind])

    def _with(self, **changed: object) -> Retriever:
        """Return a copy with other attributes, without the results that depend on them."""
        other = copy(self)
        for name in ("n_gone_labels", "_correlation"):
            other.__dict__.pop(name, None)
        other.__dict__.update(changed, _checked=None)
        return other

    @cached_property
    def _correlation(self) -> Correlation:
        if self.kind == "text":
            return INDEPENDENT  # the errors of two encoders are independent
        return correlation_of(self.encoder.metadata)

    @property
    def posterior(self) -> str:
        """Name of the posterior that gives a query's variance."""
        if self.kind == "text" and self.text is not None:
            return self.text.metadata.posterior
        return self.encoder.metadata.posterior

    @property
    def stale(self) -> str | None:
        """Reason why the calibration is not valid for the gallery; None if it is valid."""
        calibration, gallery = self.calibration, self.gallery
        if calibration is None:
            return None
        state = gallery.index_type, gallery.n_items, gallery.n_changed
        if self._checked is None or self._checked[0] != state:
            self._checked = state, staleness(calibration, gallery, self.kind)
        return self._checked[1]

    @property
    def n_new_labels(self) -> int:
        """The number of labels that were added after the calibration; they have no guarantees."""
        if self.calibration is None:
            return 0
        n_known, labels = len(self.calibration.label_classes), self.gallery.labels
        n_labels = len(labels)
        if n_labels > n_known:
            n_labels = n_known + len(set(labels[n_known:]).intersection(self.gallery.held_labels))
        return self.calibration.n_new_labels(n_labels)

    @cached_property
    def n_gone_labels(self) -> int:
        """The number of calibrated labels that have lost their last item.

        If items have changed, the function reads the label of every item. The result is cached for
        each state of the gallery.
        """
        if self.calibration is None or self.calibration.outdated is not None:
            return 0
        return n_gone_labels(self.calibration, self.gallery)

    @property
    def has_other_labels(self) -> bool:
        """True if a new calibration is needed, because labels were added or lost."""
        return self.n_new_labels > 0 or self.n_gone_labels > 0

    @property
    def not_guaranteed(self) -> str | None:
        """Reason why the guarantees do not hold, see `Terms.drift`; None if they hold.

        The reason is None for a gallery on another machine, because reading all its labels takes
        too long.
        """
        if not self.gallery.is_local or not self.n_gone_labels:
            return None
        code = "labels_gone_for_texts" if self.kind == "text" else "labels_gone"
        return message(code, n_gone=self.n_gone_labels)

    @property
    def alpha(self) -> float:
        """The false-alarm rate of the outlier flag that applies if a request states no rate."""
        return DEFAULT_ALPHA if self.calibration is None else self.calibration.alpha

    def order_of(self, requested: Order | None) -> Order:
        """Return the order of a list: ``requested``, or the gallery's default.

        Raises
        ------
        OrderUnavailable : the order is by probability, but the gallery is not calibrated.
        """
        if requested == "probability" and self.calibration is None:
            how = "(`vouch-build calibrate`, `vouch-build index --calibrate`)"
            if self.kind == "text":
                how = "for texts (`vouch-build calibrate BUNDLES --captions FILE`)"
            raise OrderUnavailable(
                "order=probability was requested, but the gallery is not calibrated, so it has no "
                f"probabilities. Omit `order`, request order=similarity, or calibrate it {how}."
            )
        if requested is None:
            return "similarity" if self.calibration is None else self.calibration.order
        return requested

    def embed(self, images: Inputs) -> list[Predictive]:
        """Return predictive distributions of ``images`` (B, H, W, 3) at the input size."""
        return self.predictives(self.encoder.encode(images))

    def predictives(
        self, embeddings: Embeddings, scores: NDArray[np.float64] | None = None
    ) -> list[Predictive]:
        """Return predictive distributions of embedded images.

        Parameters
        ----------
        scores : (B,) outlier scores of these images; None to compute them.

        Raises
        ------
        NoEmbedding : an embedding is not finite, or zero.
        """
        embeddings.require_usable()
        if scores is not None:
            return predict(embeddings, scores, self.kind)
        displacements = None
        if self.calibration is None:
            scores = np.full(len(embeddings), np.nan)
        else:
            scores = self.calibration.outlier_score(embeddings)
            displacements = self.calibration.displacement(embeddings)
        return predict(embeddings, scores, self.kind, displacements)

    def prepare(self, image: DecodedImage) -> NDArray[np.uint8]:
        """Resize a decoded image to the encoder's input size, (H, W, 3)."""
        return self.encoder.metadata.preprocessing(image.pixels)

    def find(
        self,
        predictive: Predictive,
        limit: int,
        alpha: float | None = None,
        coverage: float | None = None,
        exclude: int | None = None,
        where: Filter | None = None,
        diversity: Diversity = EVERYTHING,
        *,
        expected_absent: float | None = None,
        source: str | None = None,
        filter_means: FilterMeans = "show",
        stale: str | None = None,
        drift: str | None = None,
        order: Order | None = None,
    ) -> Answer:
        """Search and decide for one query.

        A filter restricts the list. Probabilities come from a search of the whole gallery, so they
        have the same meaning under any filter; see `decide`. With ``diversity``, or in order of
        probability, the list contains only items among the `N_CANDIDATES` nearest. Diversity and
        order do not change probabilities.

        Parameters
        ----------
        limit : maximum number of returned items, at most `N_CANDIDATES`.
        alpha, coverage : see `Terms`; None for the calibration's defaults.
        exclude : row of an item to leave out.
        where : filter of the items.
        diversity : rule for leaving out items that are similar to a nearer item.
        expected_absent : share of absent queries; None for the calibration's default.
        source : source of the query; None if not known.
        filter_means : whether the caller knows that every true match passes ``where``, see `Terms`.
        stale : a reason, besides `Retriever.stale`, why the calibration is not valid.
        drift : reason why the guarantees do not hold, see `Terms`.
        order : order of the list; None for the gallery's default.

        Raises
        ------
        OrderUnavailable : the order is by probability, but the gallery is not calibrated.
        UnknownSource : no calibration query has this source.
        """
        if not 1 <= limit <= N_CANDIDATES:
            raise ValueError(f"{limit=}, wanted 1 to {N_CANDIDATES}")
        of_kind = self.for_kind(predictive.kind)  # texts have a separate calibration
        terms = Terms(
            of_kind.alpha if alpha is None else alpha,
            coverage,
            expected_absent,
            source,
            filter_means,
            of_kind.stale or stale,
            of_kind.order_of(order),
            drift or of_kind.not_guaranteed,
        )
        return of_kind._answer(predictive, limit, terms, exclude, where, diversity)

    def _answer(
        self,
        predictive: Predictive,
        limit: int,
        terms: Terms,
        exclude: int | None,
        where: Filter | None,
        diversity: Diversity,
    ) -> Answer:
        """Search, decide and look up the items; see `find`."""
        started = time.perf_counter()
        allowed = None if where is None else self.gallery.matching(where)
        neighbours = two_stage_search(
            self.gallery,
            predictive,
            limit,
            exclude=exclude,
            allowed=allowed,
            diversity=diversity,
            noise=self._noise,
            correlation=self._correlation,
        )
        rows, retrieved = self._retrieved(predictive, neighbours, limit, terms.order, allowed)
        searched = time.perf_counter()
        if self.gallery.n_items:
            decision = decide(self.calibration, predictive, retrieved, terms)
        else:
            decision = decide_without_items(self.calibration, predictive, terms)
        if terms.order == "probability" and decision.ranking is not None:
            neighbours = reordered(
                neighbours,
                decision.ranking,
                self.gallery,
                predictive,
                limit,
            )
        shown = neighbours.rows[neighbours.listed[:limit]]
        decided = time.perf_counter()
        chosen = decision.result_set
        members = rows[:0] if chosen is None else rows[chosen.places]
        wanted = list(dict.fromkeys([*shown.tolist(), *members.tolist()]))  # each item once
        items = self.gallery.items(np.array(wanted, np.int64))
        item_of = dict(zip(wanted, items, strict=True))
        matches = matches_of(
            [item_of[row] for row in shown.tolist()],
            neighbours,
            decision,
            has_uncertainty=predictive.has_uncertainty,
        )
        seconds = {
            "search": searched - started,
            "decide": decided - searched,
            "items": time.perf_counter() - decided,
        }
        return Answer(
            decision,
            predictive,
            terms.alpha,
            terms.order,
            matches,
            len(neighbours.listed),
            tuple(item_of[row] for row in members.tolist()),
            seconds,
            None
            if allowed is None
            else Explanation(
                plan=neighbours.plan, estimated_share=allowed.share, indexes=dict(allowed.indexes)
            ),
        )

    def uncertainty(self, predictive: Predictive) -> float | None:
        """Search for a query's nearest item, and return `Assessment.uncertainty`."""
        nearest = self.gallery.candidates(predictive.direction[None], 1)
        return self._pair_uncertainty(predictive, nearest.rows[0], nearest.similarities[0])

    def _pair_uncertainty(
        self,
        predictive: Predictive,
        nearest: NDArray[np.int64],
        similarities: NDArray[np.float64],
    ) -> float | None:
        return pair_uncertainty(
            self.gallery, predictive, nearest, similarities, correlation=self._correlation
        )

    def _retrieved(
        self,
        predictive: Predictive,
        neighbours: Neighbours,
        limit: int,
        order: Order,
        allowed: Allowed | None,
    ) -> tuple[NDArray[np.int64], Retrieved]:
        """Return the rows (n,) that the decision needs, and the data of these rows."""
        # In order of similarity, only the first items of the list may be returned.
        places = neighbours.listed[: limit if order == "similarity" else N_CANDIDATES]
        rows, similarities = neighbours.rows, neighbours.similarities
        uncertainty = neighbours.uncertainty if predictive.has_uncertainty else None
        calibrated = self.calibration is not None and not math.isnan(predictive.outlier_score)
        n_nearest = len(rows)
        if allowed is not None and calibrated and self.gallery.n_items:
            nearest = self.gallery.candidates(predictive.direction[None], N_CANDIDATES)
            rows, similarities = nearest.rows[0], nearest.similarities[0]
            uncertainty = self._pair_uncertainty(predictive, rows[:1], similarities[:1])
            n_nearest = len(rows)
            shown = neighbours.rows[places]
            equal = shown[:, None] == rows
            further = ~equal.any(axis=1)
            rows = np.concatenate([rows, shown[further]])
            similarities = np.concatenate([similarities, neighbours.similarities[places[further]]])
            places = equal.argmax(axis=1)
            places[further] = n_nearest + np.arange(int(further.sum()))
        n_listed = n_nearest
        if self.calibration is not None:
            n_listed = min(n_nearest, self.calibration.n_candidates)
        codes, parents, positions = self.gallery.label_codes(rows), None, None
        if self.calibration is not None and self.calibration.within is not None:
            known = [item.metadata for item in self.gallery.items(rows)]
            positions = positions_of(known, invalid=[])
            codes = place_codes(positions, self.calibration.within)
        elif self.calibration is not None and self.calibration.hierarchy is not None:
            # Labels are looked up by name, because a compaction changes their codes.
            names = self.gallery.labels
            labels = [names[code] if code >= 0 else None for code in codes.tolist()]
            parents = self.calibration.hierarchy.of_labels(labels)
        return rows, Retrieved(
            similarities,
            codes,
            n_listed,
            places,
            None if allowed is None else allowed.at(rows),
            limit,
            parents,
            uncertainty,
            positions,
        )

    def similar(
        self,
        item_id: str,
        limit: int = 10,
        where: Filter | None = None,
        diversity: Diversity = EVERYTHING,
    ) -> Answer:
        """Search with an item of the gallery as the query; the list omits this item.

        The gallery stores the embedding of an item, but not the features for an outlier score.
        Also, a calibration is valid only for queries that are not in the gallery. So the answer has
        similarities, rank stabilities and an uncertainty, but no probabilities, and its verdict is
        ``not_calibrated``. The list is in order of similarity.

        Raises
        ------
        ItemNotFound : the gallery has no such item.
        """
        row = self.gallery.row(item_id)
        stored = self._stored(row)
        return self.find(
            stored, limit, exclude=row, where=where, diversity=diversity, order="similarity"
        )

    def _stored(self, row: int) -> Predictive:
        """Return the predictive distribution of an item, from m / ‖m‖ and v / ‖m‖²."""
        rows = np.array([row])
        unknown = np.empty((1, 0), dtype=np.float32)
        embedding = Embeddings(self.gallery.directions(rows), self.gallery.variances(rows), unknown)
        return predict(embedding, np.array([np.nan]))[0]

    def search(
        self,
        data: bytes,
        limit: int = 10,
        **options: Unpack[FindOptions],
    ) -> Answer:
        """Search with the bytes of an image file; options as in `find`.

        Raises
        ------
        ImageError : the bytes are not a valid image.
        OrderUnavailable : the order is by probability, but the gallery is not calibrated.
        """
        smallest_side = self.encoder.metadata.preprocessing.smallest_side
        prepared = self.prepare(decode_image(data, smallest_side=smallest_side))
        return self.find(self.embed(prepared[None])[0], limit, **options)


def require_one_encoder(
    encoder: Encoder,
    gallery: Gallery,
    calibration: Calibration | None,
    text: TextEncoder | None,
    text_calibration: Calibration | None,
) -> None:
    """Refuse a gallery, calibration or text encoder that was made with another encoder.

    Raises
    ------
    BundleMismatch
    """
    made_with = [("gallery", gallery.encoder_fingerprint, encoder.fingerprint)]
    if calibration is not None:
        made_with.append(("calibration", calibration.encoder_fingerprint, encoder.fingerprint))
    if text is not None:
        made_with.append(("text encoder", text.metadata.image_encoder, encoder.fingerprint))
    if text_calibration is not None:
        own = "" if text is None else text.fingerprint
        made_with.append(("calibration of texts", text_calibration.encoder_fingerprint, own))
    for part, fingerprint, wanted in made_with:
        if fingerprint != wanted:
            raise BundleMismatch(
                f"The {part} was made with encoder {fingerprint[:12]}, the encoder here is "
                f"{wanted[:12] or 'none'}. Run `vouch-build index` and "
                "`vouch-build calibrate` with this encoder."
            )

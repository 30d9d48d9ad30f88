"""From the bytes of an image to an answer: the library's way in, and the service's."""

from __future__ import annotations

import math
import time
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from model_store.answers import Answer, Explanation
from model_store.decision import (
    Calibration,
    FilterMeans,
    Retrieved,
    Terms,
    decide,
    decide_without_items,
)
from model_store.decision.staleness import n_gone_labels, staleness
from model_store.encoder.contract import Embeddings, Encoder, Inputs, QueryKind, TextEncoder
from model_store.errors import OrderUnavailable
from model_store.gallery import Allowed, Filter, Gallery, Item
from model_store.images import DecodedImage, decode_image
from model_store.matches import matches_of
from model_store.messages import message
from model_store.one_encoder import require_one_encoder
from model_store.pairs import INDEPENDENT, Correlation, correlation_of
from model_store.predictive import N_SAMPLES, Predictive, predict
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
from model_store.verdicts import Order

DEFAULT_ALPHA = 0.05
"""Rate of false alarms where neither the request nor a calibration names one."""


_noise_of = lru_cache(maxsize=16)(base_noise)
"""The galleries of one encoder have it in common."""


class SearchOptions(TypedDict, total=False):
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
    """An encoder, a gallery and a decision layer that belong together.

    Parameters
    ----------
    calibration : None where nothing is calibrated; probabilities are then None as well.
    text : the encoder of texts; None where there is none.
    text_calibration : the same of queries that are texts.

    Attributes
    ----------
    kind : of the queries that ``calibration`` judges.
    stale : why the calibration does not hold for this gallery, None where it does.

    Raises
    ------
    BundleMismatch : a part was made with another encoder.

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
        self._calibrations = {"image": calibration, "text": text_calibration}
        self._noise = _noise_of(encoder.fingerprint, N_SAMPLES, encoder.dim)
        self._noise_of_items = _noise_of(f"{encoder.fingerprint}, items", N_SAMPLES, N_CANDIDATES)

    def with_gallery(self, gallery: Gallery) -> Retriever:
        """The same encoder and decision layer, with another state of the gallery."""
        other = copy(self)
        other.gallery = gallery
        other.__dict__.pop("n_gone_labels", None)
        return other

    def for_kind(self, kind: QueryKind) -> Retriever:
        """The same gallery with the decision layer for queries of a kind."""
        if kind == self.kind:
            return self
        other = copy(self)
        other.kind, other.calibration = kind, self._calibrations[kind]
        other.__dict__.pop("n_gone_labels", None)
        return other

    @property
    def _correlation(self) -> Correlation:
        if self.kind == "text":
            return INDEPENDENT  # two encoders, each with its own errors
        return correlation_of(self.encoder.metadata)

    @property
    def posterior(self) -> str:
        """Name of the distribution behind a query's variance."""
        if self.kind == "text" and self.text is not None:
            return self.text.metadata.posterior
        return self.encoder.metadata.posterior

    @property
    def stale(self) -> str | None:
        """Why the calibration does not hold for the gallery; None where it does."""
        return None if self.calibration is None else staleness(self.calibration, self.gallery)

    @property
    def n_new_labels(self) -> int:
        """The number of labels that came after the calibration, which promises none of them."""
        if self.calibration is None:
            return 0
        return self.calibration.n_new_labels(len(self.gallery.labels))

    @cached_property
    def n_gone_labels(self) -> int:
        """The number of calibrated labels that have lost their last item.

        Reads the label of every item once for each state of the gallery, where items have changed.
        """
        if self.calibration is None or self.calibration.outdated is not None:
            return 0
        return n_gone_labels(self.calibration, self.gallery)

    @property
    def has_other_labels(self) -> bool:
        """True if labels came or went since the calibration, which is then to be fitted again."""
        return self.n_new_labels > 0 or self.n_gone_labels > 0

    @property
    def not_guaranteed(self) -> str | None:
        """Why the guarantees do not hold though verdicts are given; None where they do.

        Of a gallery on another machine it is not known: reading all labels takes too long there.
        """
        if not self.gallery.is_local or not self.n_gone_labels:
            return None
        return message("labels_gone", n_gone=self.n_gone_labels)

    @property
    def alpha(self) -> float:
        """The rate of false alarms that is used where a request names none."""
        return DEFAULT_ALPHA if self.calibration is None else self.calibration.alpha

    def order_of(self, requested: Order | None) -> Order:
        """Return the order of a list: the one ``requested``, or the gallery's own.

        Raises
        ------
        OrderUnavailable : there are no probabilities to list by.
        """
        if requested == "probability" and self.calibration is None:
            raise OrderUnavailable(
                "order=probability was requested, but the gallery is not calibrated: there are no "
                "probabilities to list by. Leave it out or ask for order=similarity; or have the "
                "gallery calibrated (`vouch-build calibrate`, `vouch-build index --calibrate`)."
            )
        if requested is None:
            return "similarity" if self.calibration is None else self.calibration.order
        return requested

    def embed(self, images: Inputs) -> list[Predictive]:
        """Predictive distributions of ``images`` (B, H, W, 3), at the encoder's input size."""
        return self.predictives(self.encoder.encode(images))

    def predictives(
        self, embeddings: Embeddings, scores: NDArray[np.float64] | None = None
    ) -> list[Predictive]:
        """Predictive distributions of images that the encoder has embedded.

        Parameters
        ----------
        scores : (B,) outlier scores of these images; None to compute them.
        """
        if scores is not None:
            return predict(embeddings, scores, self._noise, self.kind)
        displacements = None
        if self.calibration is None:
            scores = np.full(len(embeddings), np.nan)
        else:
            scores = self.calibration.outlier_score(embeddings)
            displacements = self.calibration.displacement(embeddings)
        return predict(embeddings, scores, self._noise, self.kind, displacements)

    def prepare(self, image: DecodedImage) -> NDArray[np.uint8]:
        """Bring a decoded image to the encoder's input size, (H, W, 3)."""
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

        A filter restricts what is listed; probabilities come from a search of the whole gallery, so
        that they mean the same under any filter: see `decide`. A diverse list changes no
        probability; it is made of the `N_CANDIDATES` nearest items, and ends with them. So does a
        list by probability, in which the items of likelier labels come first.

        Parameters
        ----------
        limit : how many items to describe, at most `N_CANDIDATES`.
        alpha, coverage : None for what the calibration says.
        exclude : row of an item not to find.
        where : which items may be found.
        diversity : which are not listed because a nearer one stands for them.
        expected_absent : share of absent queries; None for the calibration's default.
        source : where the query comes from; None for anywhere.
        filter_means : whether the caller knows that a true match passes ``where``.
        stale : why the calibration does not hold, beside `Retriever.stale`.
        drift : why its guarantees do not hold, though verdicts are given.
        order : what the list is ordered by; None for the gallery's own.

        Raises
        ------
        OrderUnavailable : there are no probabilities to list by.
        UnknownSource : no calibration query comes from ``source``.
        """
        if not 1 <= limit <= N_CANDIDATES:
            raise ValueError(f"{limit=}, wanted 1 to {N_CANDIDATES}")
        of_kind = self.for_kind(predictive.kind)  # a text is no matter for images' calibration
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
        """Search, decide and describe the items; see `find`."""
        started = time.perf_counter()
        allowed = None if where is None else self.gallery.matching(where)
        neighbours = two_stage_search(
            self.gallery,
            predictive,
            limit,
            exclude=exclude,
            allowed=allowed,
            diversity=diversity,
            noise=self._noise_of_items,
            correlation=self._correlation,
        )
        n_places = limit if terms.order == "similarity" else N_CANDIDATES
        rows, retrieved = self._retrieved(predictive, neighbours, n_places, allowed)
        searched = time.perf_counter()
        uncertainty = pair_uncertainty(
            self.gallery, predictive, rows[:1], correlation=self._correlation
        )
        retrieved = replace(retrieved, limit=limit, uncertainty=uncertainty)
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
                correlation=self._correlation,
            )
        shown = neighbours.rows[neighbours.listed[:limit]]
        decided = time.perf_counter()
        chosen = decision.result_set
        members = rows[:0] if chosen is None else rows[chosen.places]
        item_of = self._items(shown, members)
        matches = matches_of(
            [item_of[row] for row in shown.tolist()],
            self.gallery.total_variances(shown),
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
            else Explanation(neighbours.plan, allowed.share, allowed.indexes),
        )

    def uncertainty(self, predictive: Predictive) -> float | None:
        """Return `Assessment.uncertainty` of a query: one search for its nearest item."""
        nearest = self.gallery.candidates(predictive.direction[None], 1).rows[0]
        return pair_uncertainty(self.gallery, predictive, nearest, correlation=self._correlation)

    def _items(self, shown: NDArray[np.int64], members: NDArray[np.int64]) -> dict[int, Item]:
        """Look up items by row, each once: most members of a result set are shown as well."""
        rows = list(dict.fromkeys([*shown.tolist(), *members.tolist()]))
        return dict(zip(rows, self.gallery.items(np.array(rows, np.int64)), strict=True))

    def _retrieved(
        self,
        predictive: Predictive,
        neighbours: Neighbours,
        n_places: int,
        allowed: Allowed | None,
    ) -> tuple[NDArray[np.int64], Retrieved]:
        """Return the rows (n,) that the decision is made on, and what is known of them.

        The first ``n_places`` of the list may be described.
        """
        places = neighbours.listed[:n_places]
        rows, similarities = neighbours.rows, neighbours.similarities
        calibrated = self.calibration is not None and not math.isnan(predictive.outlier_score)
        n_nearest = len(rows)
        if allowed is not None and calibrated and self.gallery.n_items:
            nearest = self.gallery.candidates(predictive.direction[None], N_CANDIDATES)
            rows, similarities = nearest.rows[0], nearest.similarities[0]
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
        codes = self.gallery.label_codes(rows)
        return rows, Retrieved(
            similarities,
            codes,
            n_listed,
            places,
            None if allowed is None else allowed.at(rows),
            parents=self._parents(codes),
        )

    def _parents(self, codes: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """Return the parents (n, L) of labels; None where labels have none.

        By their names: codes are others after a compaction.
        """
        if self.calibration is None or self.calibration.hierarchy is None:
            return None
        names = self.gallery.labels
        labels = [names[code] if code >= 0 else None for code in codes.tolist()]
        return self.calibration.hierarchy.of_labels(labels)

    def similar(
        self,
        item_id: str,
        limit: int = 10,
        where: Filter | None = None,
        diversity: Diversity = EVERYTHING,
    ) -> Answer:
        """Search with an item of the gallery, and leave it out; nothing is encoded.

        What is stored of an item is its embedding, not the features that an outlier score comes
        from; and a calibration holds for queries that are not in the gallery. So the answer has
        similarities, stabilities and an uncertainty, but neither probabilities nor a verdict, and
        lists by similarity.

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
        """The predictive distribution of an item: of m / ‖m‖ and v / ‖m‖², as of m and v."""
        rows = np.array([row])
        unknown = np.empty((1, 0), dtype=np.float32)
        embedding = Embeddings(self.gallery.directions(rows), self.gallery.variances(rows), unknown)
        return predict(embedding, np.array([np.nan]), self._noise)[0]

    def search(
        self,
        data: bytes,
        limit: int = 10,
        **options: Unpack[SearchOptions],
    ) -> Answer:
        """Answer for the bytes of an image file; see `find`, which takes the same options.

        Raises
        ------
        ImageError : the bytes cannot be searched with.
        OrderUnavailable : there are no probabilities to list by.
        """
        smallest_side = self.encoder.metadata.preprocessing.smallest_side
        prepared = self.prepare(decode_image(data, smallest_side=smallest_side))
        return self.find(self.embed(prepared[None])[0], limit, **options)

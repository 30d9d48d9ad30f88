"""The Python client of the service.

::

    with VouchClient("http://127.0.0.1:8080") as vouch:
        answer = vouch.search("digits", Path("photo.png"), limit=3)
        print(answer.verdict, answer.results[0].id, answer.results[0].match_probability)

Methods return the models of `service.schemas`. They raise `VouchProblem` for errors of the service,
and `httpx2.RequestError` if the client cannot reach the service or decompress its response.
Install the client in a checkout with ``pip install '.[client]'``; it needs no web framework and no
encoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, Self, TypeVar, Unpack

import httpx2
from pydantic import BaseModel

from model_store.image_inputs import ImageInput, image_file
from model_store.messages import Order
from service import schemas
from service.client.contract import (
    Fields,
    base_of,
    body_of,
    fields_of,
    headers_of,
    path_of,
    read,
    record_of,
    send,
    sent_again,
)
from service.client.management import GalleryManagement, ReviewQueueClient, UnknownQueriesClient
from service.schemas.keywords import (
    DecisionOptions,
    Filter,
    ListOptions,
    SearchOptions,
    as_json,
    require_text,
)

AnswerT = TypeVar("AnswerT", bound=BaseModel)
PageT = TypeVar("PageT", schemas.LabelList, schemas.DecisionList)


class VouchClient:
    """Client of one service; thread-safe. Close the client, or use it as a context manager.

    If the service is busy (503 with ``Retry-After``), the client sends a request up to
    `MAX_ATTEMPTS` times. Retries are safe: a query changes nothing, and new feedback replaces
    earlier feedback. With an Idempotency-Key, a repeated request changes a gallery only once. If
    the replica that works on a query ends (``replica_lost``), or the connection is lost, the client
    sends the query again.

    Parameters
    ----------
    url : URL of the service, without a path.
    api_key : API key, sent as ``Authorization: Bearer``.
    timeout_s : timeout of each attempt, in seconds.
    transport : replaces the network in tests.

    Attributes
    ----------
    manage : client that manages galleries, calibrations, shadow bundles and quotas.

    Raises
    ------
    TypeError : ``url`` or ``api_key`` is not text.
    ValueError : ``url`` does not begin with ``http://`` or ``https://``; or ``api_key`` has
        characters that a header cannot carry, and the message does not show the key.

    Examples
    --------
    >>> with VouchClient("http://127.0.0.1:8080") as vouch:
    ...     answer = vouch.search("demo", Path("photo.png"), limit=3)
    ...     print(answer.verdict, answer.results[0].id)
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._http = httpx2.Client(
            base_url=base_of(url),
            headers=headers_of(api_key),
            timeout=timeout_s,
            transport=transport,
        )
        self.manage = GalleryManagement(self._http.build_request, self._ask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def galleries(self) -> list[schemas.GalleryName]:
        """List the galleries that are served.

        Examples
        --------
        >>> names = [gallery.name for gallery in vouch.galleries()]
        """
        return self._get("/v1/galleries", schemas.GalleryList).galleries

    def gallery(self, gallery: str) -> schemas.GalleryDetail:
        """Return the size, encoder, calibration, measured quality and sample images of a gallery.

        Examples
        --------
        >>> n_items = vouch.gallery("demo").n_items
        """
        return self._get(path_of(gallery), schemas.GalleryDetail)

    def facets(self, gallery: str, limit: int = 20) -> list[schemas.Facet]:
        """Return the fields for filters, with at most ``limit`` values each.

        Examples
        --------
        >>> fields = vouch.facets("demo", limit=5)
        """
        return self._get(path_of(gallery, "facets"), schemas.FacetList, {"limit": limit}).facets

    def labels(self, gallery: str, page_size: int = 1000) -> Iterator[str]:
        """Iterate over the labels of a gallery in alphabetical order; pages are fetched on demand.

        Examples
        --------
        >>> labels = list(vouch.labels("demo"))
        """
        for page in self._pages(path_of(gallery, "labels"), schemas.LabelList, page_size):
            yield from page.labels

    def search(
        self, gallery: str, image: ImageInput, **options: Unpack[SearchOptions]
    ) -> schemas.SearchAnswer:
        """Find the items most similar to an image, with calibrated probabilities.

        If the calibration allows no match or no probabilities, `SearchAnswer.reason` states why.

        Raises
        ------
        VouchProblem : for example ``corrupt_image``, or an option is out of range.

        Examples
        --------
        >>> answer = vouch.search("demo", Path("photo.png"), limit=3, filter={"label": "chair"})
        """
        path = path_of(gallery, "search")
        files = [("image", image_file(image))]
        return self._upload(path, schemas.SearchAnswer, fields_of(**options), files)

    def search_vector(
        self,
        gallery: str,
        query: schemas.VectorFields | Mapping[str, object],
        **options: Unpack[SearchOptions],
    ) -> schemas.SearchAnswer:
        """Search with a vector from the gallery's encoder, computed outside the service.

        Parameters
        ----------
        query : ``mean`` (D,), and optionally ``variance`` (D,) in squared units of ``mean``,
            ``features`` (F,), ``outlier_score`` and ``encoder_fingerprint``. Vectors are lists or
            arrays.

        Raises
        ------
        VouchProblem : such as ``invalid_vector``.
        TypeError : ``query`` is no mapping, or has a value that JSON cannot hold.

        Examples
        --------
        >>> stored = vouch.embed("demo", Path("photo.png"))
        >>> query = {"mean": stored.direction, "outlier_score": stored.outlier_score}
        >>> answer = vouch.search_vector("demo", query, limit=3)
        """
        body = {**record_of("query", query), **fields_of(**options)}
        return self._post(path_of(gallery, "search", "vector"), schemas.SearchAnswer, body)

    def search_text(
        self, gallery: str, text: str, **options: Unpack[SearchOptions]
    ) -> schemas.SearchAnswer:
        """Search with a text; the gallery's encoder needs a text tower.

        Raises
        ------
        VouchProblem : such as ``text_unavailable``.

        Examples
        --------
        >>> answer = vouch.search_text("demo", "a red chair", limit=3)
        """
        path = path_of(gallery, "search", "text")
        return self._post(path, schemas.SearchAnswer, {"text": text, **fields_of(**options)})

    def decide(
        self,
        gallery: str,
        query: schemas.VectorFields | Mapping[str, object],
        neighbours: Sequence[schemas.Neighbour | Mapping[str, object]],
        **options: Unpack[DecisionOptions],
    ) -> schemas.DecisionAnswer:
        """Decide whether neighbours from another vector store, nearest first, match a query.

        Parameters
        ----------
        query : see `search_vector`.
        neighbours : each has an ``id``, optionally a ``label``, and a cosine ``similarity`` or a
            ``vector`` (D,).

        Raises
        ------
        VouchProblem : such as ``invalid_vector``.
        TypeError : a query or a neighbour is no mapping, or has a value that JSON cannot hold.

        Examples
        --------
        >>> stored = vouch.embed("demo", Path("photo.png"))
        >>> query = {"mean": stored.direction, "outlier_score": stored.outlier_score}
        >>> rows = store.search(stored.direction, limit=200)
        >>> neighbours = [{"id": row.id, "similarity": row.cosine} for row in rows]
        >>> verdict = vouch.decide("demo", query, neighbours).verdict
        """
        body: dict[str, Any] = {**record_of("query", query), **fields_of(**options)}
        body["neighbours"] = [
            record_of(f"neighbours[{place}]", one) for place, one in enumerate(neighbours)
        ]
        return self._post(path_of(gallery, "decide"), schemas.DecisionAnswer, body)

    def search_next(self, answer: schemas.SearchAnswer) -> schemas.SearchAnswer | None:
        """Return the next page of results after ``answer``; None if there is none.

        Examples
        --------
        >>> more = vouch.search_next(answer)
        """
        if answer.next_cursor is None:
            return None
        path = path_of(answer.gallery, "search", "next")
        return self._get(path, schemas.SearchAnswer, {"cursor": answer.next_cursor})

    def search_batch(
        self, gallery: str, images: Sequence[ImageInput], **options: Unpack[SearchOptions]
    ) -> list[schemas.BatchItem]:
        """Return an answer or a problem for each image, in order; no images need no request.

        The service searches with at most 32 images in one request.

        Examples
        --------
        >>> answers = vouch.search_batch("demo", [Path("one.png"), Path("two.png")], limit=3)
        """
        files = [("images", image_file(image)) for image in images]
        if not files:
            return []
        path = path_of(gallery, "search", "batch")
        return self._upload(path, schemas.BatchAnswer, fields_of(**options), files).items

    def assess(
        self, gallery: str, image: ImageInput, *, alpha: float | None = None
    ) -> schemas.AssessmentAnswer:
        """Assess an image without searching: its quality, uncertainty and outlier test.

        Examples
        --------
        >>> assessment = vouch.assess("demo", Path("photo.png"))
        """
        path, options = path_of(gallery, "assess"), fields_of(alpha=alpha)
        return self._upload(path, schemas.AssessmentAnswer, options, [("image", image_file(image))])

    def embed(
        self, gallery: str, image: ImageInput, *, alpha: float | None = None
    ) -> schemas.EmbeddingAnswer:
        """Return the embedding of an image as a distribution.

        Examples
        --------
        >>> embedding = vouch.embed("demo", Path("photo.png"))
        """
        path, options = path_of(gallery, "embed"), fields_of(alpha=alpha)
        return self._upload(path, schemas.EmbeddingAnswer, options, [("image", image_file(image))])

    def items(
        self,
        gallery: str,
        page_size: int = 100,
        *,
        filter: Filter | None = None,  # noqa: A002 - the service's own name
    ) -> Iterator[schemas.ItemDetail]:
        """Iterate over the items of a gallery, in the order of their ids.

        Pages are fetched on demand.

        Parameters
        ----------
        filter : condition on the items, as in a search; if None, all items are listed.

        Examples
        --------
        >>> ids = [item.id for item in vouch.items("demo")]
        >>> chairs = list(vouch.items("demo", filter={"label": "chair"}))
        """
        options = fields_of(limit=page_size, filter=filter)
        yield from self._listed(path_of(gallery, "items"), schemas.ItemList, options)

    def item(self, gallery: str, item_id: str) -> schemas.ItemDetail:
        """One item.

        Examples
        --------
        >>> label = vouch.item("demo", "chair-7").label
        """
        return self._get(path_of(gallery, "items", item_id), schemas.ItemDetail)

    def thumbnail(self, gallery: str, item_id: str) -> tuple[bytes, str]:
        """Return the picture of an item and its media type.

        Examples
        --------
        >>> content, media_type = vouch.thumbnail("demo", "chair-7")
        """
        path = path_of(gallery, "items", item_id, "thumbnail")
        response = self._send(self._http.build_request("GET", path))
        return response.content, response.headers["content-type"]

    def similar(
        self, gallery: str, item_id: str, **options: Unpack[ListOptions]
    ) -> schemas.SimilarAnswer:
        """List the items most similar to an item of the gallery, without the item itself.

        Examples
        --------
        >>> similar = vouch.similar("demo", "chair-7", limit=3).results
        """
        path = path_of(gallery, "items", item_id, "similar")
        return self._get(path, schemas.SimilarAnswer, fields_of(**options))

    def label_errors(
        self, gallery: str, *, confidence: float = 0.8, order: Literal["id", "confidence"] = "id"
    ) -> Iterator[schemas.PossibleLabelError]:
        """Iterate over items whose label differs from the label of their nearest neighbours.

        With the order ``confidence``, the clearest errors of the whole gallery come first.

        Pages are fetched on demand; the service needs about half a second for each page.

        Examples
        --------
        >>> for error in vouch.label_errors("demo", confidence=0.9, order="confidence"):
        ...     print(error.item.id, error.item.label, error.suggested_label)
        """
        path, options = path_of(gallery, "label-errors"), {"confidence": confidence, "order": order}
        yield from self._listed(path, schemas.LabelErrorList, options)

    def near_duplicates(
        self, gallery: str, *, threshold: float = 0.99, order: Literal["id", "similarity"] = "id"
    ) -> Iterator[schemas.ItemWithDuplicates]:
        """Iterate over items that have near duplicates; both items of a pair are listed.

        With the order ``similarity``, the nearest duplicates of the whole gallery come first.

        Pages are fetched on demand; the service needs about half a second for each page.

        Examples
        --------
        >>> for one in vouch.near_duplicates("demo"):
        ...     print(one.item.id, [(near.id, near.similarity) for near in one.duplicates])
        """
        path = path_of(gallery, "near-duplicates")
        options = {"threshold": threshold, "order": order}
        yield from self._listed(path, schemas.NearDuplicateList, options)

    def _listed(self, path: str, answer: type[Any], options: Fields) -> Iterator[Any]:
        """Iterate over the items of a list; a page is requested when the one before is read."""
        cursor: dict[str, str] = {}
        while True:
            page = self._get(path, answer, {**options, **cursor})
            yield from page.items
            if page.next_cursor is None:
                return
            cursor = {"cursor": page.next_cursor}

    def put_item(
        self,
        gallery: str,
        item_id: str,
        image: ImageInput,
        *,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> schemas.ItemWritten:
        """Write an item to a gallery; an item with the same id is replaced.

        Raises
        ------
        VouchProblem : nothing was changed; for example ``corrupt_image`` or ``write_refused``.

        Examples
        --------
        >>> vouch.put_item("demo", "chair-7", Path("photo.png"), label="chair")
        """
        fields = {"metadata": json.dumps(as_json("metadata", metadata or {}))}
        if label is not None:
            fields["label"] = require_text("label", label)
        path, files = path_of(gallery, "items", item_id), [("image", image_file(image))]
        request = self._http.build_request(
            "PUT", path, data=fields, files=files, headers=sent_again(idempotency_key)
        )
        return self._ask(request, schemas.ItemWritten)

    def put_items(
        self,
        gallery: str,
        items: Iterable[tuple[str, ImageInput]],
        *,
        label: str | None = None,
        idempotency_key: str | None = None,
    ) -> list[schemas.BatchItemWritten]:
        """Write several items, each with an id and an image; no items need no request.

        The service writes all valid items, at most 32, in one transaction.

        Examples
        --------
        >>> written = vouch.put_items("demo", [("chair-8", Path("photo.png"))], label="chair")
        """
        items = list(items)
        if not items:
            return []
        if label is not None:
            require_text("label", label)
        entries = [{"id": require_text("id", item_id), "label": label} for item_id, _ in items]
        request = self._http.build_request(
            "POST",
            path_of(gallery, "items"),
            data={"items": json.dumps(entries)},
            files=[("images", image_file(image)) for _, image in items],
            headers=sent_again(idempotency_key),
        )
        return self._ask(request, schemas.BatchWritten).items

    def edit_item(
        self,
        gallery: str,
        item_id: str,
        *,
        label: str | EllipsisType | None = ...,
        metadata: Mapping[str, Any] | EllipsisType = ...,
        idempotency_key: str | None = None,
    ) -> schemas.ItemWritten:
        """Change the label or metadata of an item; the picture of the item does not change.

        The value ``...`` leaves a field unchanged. ``label=None`` removes the label. ``metadata``
        replaces all metadata.

        Raises
        ------
        VouchProblem : nothing was changed; for example ``item_not_found`` or ``write_refused``.

        Examples
        --------
        >>> vouch.edit_item("demo", "chair-7", label="armchair")
        """
        given: dict[str, Any] = {}
        if label is not ...:
            given["label"] = None if label is None else require_text("label", label)
        if metadata is not ...:
            given["metadata"] = as_json("metadata", metadata)
        request = self._http.build_request(
            "PATCH",
            path_of(gallery, "items", item_id),
            json=given,
            headers=sent_again(idempotency_key),
        )
        return self._ask(request, schemas.ItemWritten)

    def delete_item(
        self, gallery: str, item_id: str, *, idempotency_key: str | None = None
    ) -> schemas.ItemWritten:
        """Delete an item from a gallery.

        Examples
        --------
        >>> receipt = vouch.delete_item("demo", "chair-7")
        """
        request = self._http.build_request(
            "DELETE", path_of(gallery, "items", item_id), headers=sent_again(idempotency_key)
        )
        return self._ask(request, schemas.ItemWritten)

    def compact(self, gallery: str) -> schemas.Activation:
        """Compact a gallery: build and serve a new bundle from the served bundle and its changes.

        Examples
        --------
        >>> activation = vouch.compact("demo")
        """
        request = self._http.build_request("POST", path_of(gallery, "compact"))
        return self._ask(request, schemas.Activation)

    def feedback(
        self, answer: schemas.SearchAnswer, item_id: str, *, correct: bool
    ) -> schemas.FeedbackAnswer:
        """Confirm or reject an item of an answer.

        If ``answer.audit`` is true, the answer was drawn at random for review. In this case, report
        whether the first result is right or wrong.

        Examples
        --------
        >>> vouch.feedback(answer, answer.results[0].id, correct=True)
        """
        body = body_of(query_id=answer.query.id, item_id=item_id, correct=correct)
        return self._post(path_of(answer.gallery, "feedback"), schemas.FeedbackAnswer, body)

    def decide_query(
        self,
        gallery: str,
        query_id: str,
        decision: schemas.DecisionKind,
        item_id: str | None = None,
        *,
        reviewer: str | None = None,
        comment: str | None = None,
        item: schemas.ItemOfQuery | Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> schemas.FeedbackAnswer:
        """Record a reviewer decision on an earlier query that the service still stores.

        Parameters
        ----------
        query_id : id of the query: `query.id` in the answer.
        item_id : id of the item that the decision names.
        item : the item to create from the query; only for the decision ``new``. It has an ``id``,
            and optionally ``label`` and ``metadata``.

        Examples
        --------
        >>> vouch.decide_query("demo", answer.query.id, "this_item", answer.results[0].id)
        """
        body = body_of(
            query_id=query_id,
            decision=decision,
            item_id=item_id,
            reviewer=reviewer,
            comment=comment,
            item=None if item is None else record_of("item", item),
        )
        request = self._http.build_request(
            "POST",
            path_of(gallery, "feedback"),
            json=body,
            headers=sent_again(idempotency_key),
        )
        return self._ask(request, schemas.FeedbackAnswer)

    def decisions(self, gallery: str, page_size: int = 100) -> Iterator[schemas.Decision]:
        """Iterate over the decisions on queries, oldest first; undone decisions are included.

        Examples
        --------
        >>> kinds = [decision.decision for decision in vouch.decisions("demo")]
        """
        for page in self._pages(path_of(gallery, "feedback"), schemas.DecisionList, page_size):
            yield from page.decisions

    def undo_decision(self, gallery: str, number: int) -> schemas.Decision:
        """Take a decision back.

        Examples
        --------
        >>> decision = vouch.undo_decision("demo", 1)
        """
        request = self._http.build_request("DELETE", path_of(gallery, "feedback", str(number)))
        return self._ask(request, schemas.Decision)

    def review_queue(self, gallery: str) -> ReviewQueueClient:
        """Return a client of the review queue of a gallery.

        Examples
        --------
        >>> cases = list(vouch.review_queue("demo").cases())
        """
        return ReviewQueueClient(gallery, self._http, self._send)

    def unknown(self, gallery: str) -> UnknownQueriesClient:
        """Return a client that groups the queries for which a gallery had no match.

        Examples
        --------
        >>> groups = vouch.unknown("demo").groups()
        """
        return UnknownQueriesClient(gallery, self._http, self._send)

    def calibration(
        self,
        gallery: str,
        *,
        order: Order | None = None,
        kind: Literal["image", "text"] | None = None,
    ) -> schemas.CalibrationReport:
        """Fetch the calibration report: the evidence behind probabilities and thresholds.

        Parameters
        ----------
        order : order of results that the report describes; None for the gallery's default.
        kind : kind of the queries that the report describes; None for images.

        Examples
        --------
        >>> report = vouch.calibration("demo")
        >>> report_for_texts = vouch.calibration("demo", kind="text")
        """
        path = path_of(gallery, "calibration")
        return self._get(path, schemas.CalibrationReport, fields_of(order=order, kind=kind))

    def bundles(self, gallery: str) -> schemas.BundleList:
        """Fetch the history of a gallery's bundles, oldest first, with their calibrations.

        Examples
        --------
        >>> history = vouch.bundles("demo")
        >>> [one.calibration.match_share for one in history.bundles if one.calibration]
        """
        return self._get(path_of(gallery, "bundles"), schemas.BundleList)

    def operating_point(
        self,
        gallery: str,
        max_error: float,
        *,
        expected_absent: float | None = None,
        source: str | None = None,
        order: Order | None = None,
        kind: Literal["image", "text"] | None = None,
    ) -> schemas.OperatingPoint | None:
        """Return the threshold that gives the most matches with an error of at most ``max_error``.

        None if no threshold guarantees this limit.

        Parameters
        ----------
        max_error : maximum share of wrong matches.
        expected_absent : share of queries without a match; if None, the gallery's share is used.
        source : source of the queries; None for all sources.
        order : order of results; None for the gallery's default.
        kind : kind of the queries; None for images.

        Examples
        --------
        >>> point = vouch.operating_point("demo", max_error=0.01)
        """
        path = path_of(gallery, "calibration", "operating-points")
        options = fields_of(
            max_error=max_error,
            expected_absent=expected_absent,
            source=source,
            order=order,
            kind=kind,
        )
        return self._get(path, schemas.OperatingPointAnswer, options).point

    def _pages(self, path: str, answer: type[PageT], page_size: int) -> Iterator[PageT]:
        """Iterate over the pages of a list, each requested when the one before is read."""
        options: dict[str, str | int] = {"limit": page_size}
        while True:
            page = self._get(path, answer, options)
            yield page
            if page.next_after is None:
                return
            options["after"] = page.next_after

    def _get(self, path: str, answer: type[AnswerT], query: Fields | None = None) -> AnswerT:
        return self._ask(self._http.build_request("GET", path, params=query), answer)

    def _post(self, path: str, answer: type[AnswerT], body: Mapping[str, Any]) -> AnswerT:
        return self._ask(self._http.build_request("POST", path, json=body), answer)

    def _upload(
        self,
        path: str,
        answer: type[AnswerT],
        options: Fields,
        files: Sequence[tuple[str, tuple[str, bytes]]],
    ) -> AnswerT:
        request = self._http.build_request("POST", path, data=options, files=files)
        return self._ask(request, answer)

    def _ask(self, request: httpx2.Request, answer: type[AnswerT]) -> AnswerT:
        return read(self._send(request), answer)

    def _send(self, request: httpx2.Request) -> httpx2.Response:
        return send(self._http, request)

"""The paths of queries: an image, a text, a vector, or neighbours from another store."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, File, Form, Query, Request, UploadFile

from model_store.decision import Assessment
from model_store.errors import (
    CorruptImage,
    EmptyImage,
    EncoderStopped,
    GalleryNotFound,
    ImageTooCostly,
    ImageTooLarge,
    InvalidCursor,
    InvalidFilter,
    InvalidRequest,
    InvalidText,
    InvalidVector,
    NoEmbedding,
    OutdatedCursor,
    QueryNotFound,
    TextUnavailable,
    UnsupportedImage,
    UnsupportedMediaType,
)
from model_store.images.quality import MEASURES
from model_store.queries import NeighbourList, VectorQuery
from model_store.search import N_CANDIDATES
from service import schemas
from service.access.access import Access, counts_as_search
from service.http import answers, cursors
from service.http.answers import bundle_state
from service.http.bodies import from_base64
from service.http.limits import MAX_BATCH
from service.http.problems import problem_document, responses
from service.http.routing import JSON, MULTIPART, RAW, DirectRoute, body_of, form_of
from service.observability.logs import SearchRecord, request_record
from service.observability.metrics import counted_as
from service.schemas.base import RequestModel
from service.serializers import absent_share, milliseconds, query, result_set
from service.serving.lease import Lease
from service.serving.queries import (
    Assessed,
    DecidedList,
    Embedded,
    SearchParameters,
    SearchResult,
)

from .dependencies import (
    LeaseOf,
    ServiceState,
    StateOf,
    fields_of_form,
    gallery_router,
    leased,
    options_in_address,
    options_of,
    parameters_of,
)

router = gallery_router("searching")

BATCH_CONCURRENCY = 4
"""Maximum number of images of one batch that are searched at the same time. Other queries then need
not wait for the whole batch."""

BODY_ERRORS = (ImageTooLarge, UnsupportedMediaType, InvalidRequest, InvalidFilter)
IMAGE_ERRORS = (
    EmptyImage,
    UnsupportedImage,
    ImageTooCostly,
    CorruptImage,
    NoEmbedding,
    EncoderStopped,
)
UPLOAD_ERRORS = responses(GalleryNotFound, *BODY_ERRORS, *IMAGE_ERRORS)

_check_raw = body_of(*RAW, required=False)

ONE_IMAGE = "One image file: JPEG, PNG, WebP, GIF, BMP, TIFF."
RAW_BODY = {
    "requestBody": {
        "required": True,
        "description": ONE_IMAGE,
        "content": {
            media_type: {
                "schema": {"type": "string", "contentMediaType": "application/octet-stream"}
            }
            for media_type in RAW
        },
    }
}


class SearchForm(schemas.SearchFields):
    """A search with an image file."""

    image: UploadFile = File(description=ONE_IMAGE)


class SearchBatchForm(schemas.SearchFields):
    """Several searches, each with an image file. The options apply to all searches."""

    images: list[UploadFile] = File(
        min_length=1, max_length=MAX_BATCH, description="Image files, one file for each search."
    )


class AssessmentForm(RequestModel):
    """An image file."""

    image: UploadFile = File(description=ONE_IMAGE)
    alpha: schemas.Alpha = None


async def search(request: Request, gallery: str) -> schemas.SearchAnswer:
    """Find the items most similar to an uploaded image, with calibrated probabilities.

    `curl -F image=@photo.jpg -F limit=5 http://127.0.0.1:8080/v1/galleries/photographs/search`
    """
    form = await form_of(request, SearchForm)
    async with leased(gallery, request) as lease:
        return await _answer(request, lease, await form.image.read(), form)


router.add_api_route(
    "/{gallery}/search",
    search,
    methods=["POST"],
    operation_id="search",
    responses=UPLOAD_ERRORS,
    route_class_override=DirectRoute,
    dependencies=[Depends(counts_as_search), Depends(fields_of_form(SearchForm))],
)


async def search_raw(request: Request, gallery: str) -> schemas.SearchAnswer:
    """Search with an image file as the body, and with options in the query string.

    `curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg …/search/raw?limit=5`
    """
    await _check_raw(request)
    options = options_of(request, schemas.SearchFields)
    async with leased(gallery, request) as lease:
        return await _answer(request, lease, await request.body(), options)


router.add_api_route(
    "/{gallery}/search/raw",
    search_raw,
    methods=["POST"],
    operation_id="search_raw",
    responses=UPLOAD_ERRORS,
    openapi_extra=RAW_BODY,
    route_class_override=DirectRoute,
    dependencies=[
        Depends(counts_as_search),
        Depends(options_in_address(schemas.SearchFields)),
    ],
)


@router.post(
    "/{gallery}/search/json",
    operation_id="search_json",
    responses=UPLOAD_ERRORS,
    dependencies=[Depends(counts_as_search), Depends(body_of(JSON))],
)
async def search_json(
    request: Request, lease: LeaseOf, state: StateOf, body: schemas.SearchRequest
) -> schemas.SearchAnswer:
    """Search with an image file in base64, for clients that can only send JSON.

    Base64 text is a third larger than the file. The service does not fetch URLs.
    """
    data = await asyncio.to_thread(from_base64, body.image_base64, state.settings.max_image_bytes)
    return await _answer(request, lease, data, body)


@router.post(
    "/{gallery}/search/batch",
    operation_id="search_batch",
    responses=responses(GalleryNotFound, *BODY_ERRORS),
    dependencies=[Depends(counts_as_search), Depends(body_of(MULTIPART))],
)
async def search_batch(
    request: Request,
    lease: LeaseOf,
    form: Annotated[SearchBatchForm, Form(media_type=MULTIPART)],
) -> schemas.BatchAnswer:
    """Search with several image files in one request. An invalid file does not affect other files.

    The HTTP status is 200, even if files are invalid. Each file has its own status, with an answer
    or a problem.
    """
    parameters_of(form)  # invalid options are an error of the whole batch
    access: Access = request.app.state.access
    await access.count_searches(request, len(form.images) - 1)  # one search is already counted
    turns = asyncio.Semaphore(BATCH_CONCURRENCY)

    async def one(index: int, image: UploadFile) -> schemas.BatchItem:
        async with turns:
            try:
                answer = await _answer(request, lease, await image.read(), form)
            except Exception as error:  # any error: the other files still get answers
                problem = problem_document(request, error)
                return schemas.BatchItem(
                    index=index,
                    file_name=image.filename,
                    status=problem.status,
                    answer=None,
                    problem=problem,
                )
        return schemas.BatchItem(
            index=index, file_name=image.filename, status=200, answer=answer, problem=None
        )

    items = await asyncio.gather(*(one(index, image) for index, image in enumerate(form.images)))
    return schemas.BatchAnswer(
        request_id=request.state.request_id, gallery=lease.bundle.name, items=items
    )


@router.get(
    "/{gallery}/search/next",
    operation_id="search_next",
    responses=responses(GalleryNotFound, QueryNotFound, InvalidCursor, OutdatedCursor),
)
async def search_next(
    request: Request,
    lease: LeaseOf,
    cursor: Annotated[
        str, Query(max_length=cursors.MAX_LENGTH, description="`next_cursor` of the previous page.")
    ],
) -> schemas.SearchAnswer:
    """Return the next results of a query. The image is not encoded again.

    A cursor is valid for at most an hour. It becomes invalid if another bundle is served, or if the
    query is neither cached nor kept for review. All pages use the state that the gallery had at the
    first page. Items that were deleted, replaced or edited since then are omitted, and their ranks
    are missing.
    """
    page = cursors.read(cursor, cursors.SearchCursor, lease.bundle.manifest.id, lease.engine.secret)
    lease = await lease.engine.compute(lambda: lease.at(page.version))
    options = page.options
    limit = min(page.start + options.limit, N_CANDIDATES)
    found = await lease.again(page.query_id, replace(parameters_of(options), limit=limit))
    found = replace(found, share_origin=page.share_origin)
    request_id = request.state.request_id
    return answers.search_answer(lease, found, request_id, options, skipped=page.start)


@router.post(
    "/{gallery}/assess",
    operation_id="assess",
    responses=UPLOAD_ERRORS,
    dependencies=[Depends(counts_as_search), Depends(body_of(MULTIPART))],
)
async def assess(
    request: Request,
    lease: LeaseOf,
    form: Annotated[AssessmentForm, Form(media_type=MULTIPART)],
) -> schemas.AssessmentAnswer:
    """Assess an image without a search: quality, uncertainty and outlier test.

    A camera app can call this path before the user takes a photograph. A later search with the same
    bytes is a cache hit.
    """
    assessed = await lease.assess(await form.image.read(), form.alpha)
    return schemas.AssessmentAnswer(
        request_id=request.state.request_id,
        gallery=lease.bundle.name,
        query=_described(lease, assessed, assessed.assessment),
        quality=schemas.Quality(
            hints=assessed.hints,
            measures=dict(zip(MEASURES, assessed.measures.tolist(), strict=True)),
        ),
        bundle=bundle_state(lease),
    )


@router.post(
    "/{gallery}/embed",
    operation_id="embed",
    responses=UPLOAD_ERRORS,
    dependencies=[Depends(counts_as_search), Depends(body_of(MULTIPART))],
)
async def embed(
    request: Request,
    lease: LeaseOf,
    form: Annotated[AssessmentForm, Form(media_type=MULTIPART)],
) -> schemas.EmbeddingAnswer:
    """Return the embedding of an image as a distribution, without a search.

    Compare embeddings only if they have the same `encoder.fingerprint`.
    """
    embedded = await lease.embed(await form.image.read(), form.alpha)
    bundle, predictive = lease.bundle, embedded.predictive
    score = predictive.outlier_score
    return schemas.EmbeddingAnswer(
        request_id=request.state.request_id,
        gallery=bundle.name,
        query=_described(lease, embedded, embedded.assessment),
        direction=predictive.direction.tolist(),
        variance=predictive.variance.tolist(),
        concentration=predictive.concentration,
        spherical_variance=predictive.spherical_variance,
        outlier_score=None if math.isnan(score) else score,
        encoder=answers.encoder_state(bundle),
        bundle=bundle_state(lease),
    )


def _described(
    lease: Lease, upload: Assessed | Embedded | DecidedList, assessment: Assessment
) -> schemas.Query:
    posterior = lease.bundle.retriever.posterior
    return query(upload.query_id, assessment, upload.alpha, posterior, upload.image)


async def _answer(
    request: Request,
    lease: Lease,
    data: bytes,
    options: schemas.SearchFields,
) -> schemas.SearchAnswer:
    """Search with the bytes of an image file, and add the answer to metrics and log."""
    found = await lease.search(data, parameters_of(options, request))
    return _counted_answer(request, lease, found, options)


def _counted_answer(
    request: Request, lease: Lease, found: SearchResult, options: schemas.SearchFields
) -> schemas.SearchAnswer:
    """Return the answer to one query, and add it to metrics, and to the request's log and trace."""
    answer = answers.search_answer(lease, found, request.state.request_id, options)
    state: ServiceState = request.app.state.vouch
    gallery = counted_as(lease.bundle)
    search = SearchRecord(
        verdict=answer.verdict,
        cache=answer.cache,
        uncertainty_percentile=answer.query.uncertainty.percentile,
        outlier_p_value=answer.query.ood.p_value,
        is_outlier=bool(answer.query.ood.flag),
        seconds=found.seconds,
        ended_ns=found.at_ns,
    )
    state.telemetry.search(gallery, search)
    if answer.audit:
        state.telemetry.audits.labels(gallery).inc()
    record = request_record.get()
    if record is not None:
        record.searches.append(search)
    return answer


_ERRORS = responses(
    GalleryNotFound, ImageTooLarge, UnsupportedMediaType, InvalidVector, InvalidFilter
)


@router.post(
    "/{gallery}/search/text",
    operation_id="search_text",
    responses=responses(
        GalleryNotFound,
        ImageTooLarge,
        UnsupportedMediaType,
        InvalidText,
        TextUnavailable,
        InvalidFilter,
    ),
    dependencies=[Depends(counts_as_search), Depends(body_of(JSON))],
)
async def search_text(
    request: Request, lease: LeaseOf, body: schemas.TextSearchRequest
) -> schemas.SearchAnswer:
    """Search with a text, if the gallery's encoder has a text tower.

    Text queries need their own calibration, with captions. Without a calibration for texts, the
    verdict is `not_calibrated`.
    """
    found = await lease.search_text(body.text, parameters_of(body, request))
    return _counted_answer(request, lease, found, body)


@router.post(
    "/{gallery}/search/vector",
    operation_id="search_vector",
    responses=_ERRORS,
    dependencies=[Depends(counts_as_search), Depends(body_of(JSON))],
)
async def search_vector(
    request: Request, lease: LeaseOf, body: schemas.VectorSearchRequest
) -> schemas.SearchAnswer:
    """Search with a vector that the gallery's encoder computed earlier or in another system.

    You can use the answer of `embed`: send its `direction` as `mean`, its `variance`, and its
    `outlier_score`.
    """
    found = await lease.search_vector(_query(body), parameters_of(body, request))
    return _counted_answer(request, lease, found, body)


@router.post(
    "/{gallery}/decide",
    operation_id="decide",
    responses=_ERRORS,
    dependencies=[Depends(counts_as_search), Depends(body_of(JSON))],
)
async def decide(
    request: Request, lease: LeaseOf, body: schemas.DecisionRequest
) -> schemas.DecisionAnswer:
    """Decide on neighbours that another store, such as a vector database, has found.

    The service searches nothing, and uses only the gallery's calibration. Send as many neighbours
    as the calibration used. The labels of the neighbours must be labels of the gallery.
    """
    parameters = SearchParameters(
        len(body.neighbours),
        body.alpha,
        body.coverage,
        expected_absent=body.expected_absent,
        of_key=request.state.caller.expected_absent,
        source=body.source,
    )
    found = await lease.decide(_query(body), _neighbours(body.neighbours), parameters)
    return _decision_answer(lease, found, request.state.request_id)


def _query(body: schemas.VectorFields) -> VectorQuery:
    return VectorQuery(
        body.mean, body.variance, body.features, body.outlier_score, body.encoder_fingerprint
    )


def _neighbours(sent: list[schemas.Neighbour]) -> NeighbourList:
    """Return the neighbours. Either all neighbours have a similarity, or all have a vector.

    Raises
    ------
    InvalidVector : similarities and vectors are mixed or missing.
    """
    similarities = [one.similarity for one in sent if one.similarity is not None]
    vectors = [one.vector for one in sent if one.vector is not None]
    if sorted([len(similarities), len(vectors)]) != [0, len(sent)]:
        raise InvalidVector(
            f"Of {len(sent)} neighbours, {len(similarities)} have a similarity and {len(vectors)} "
            "have a vector. Send a similarity for all neighbours, or a vector for all."
        )
    if len({len(vector) for vector in vectors}) > 1:
        raise InvalidVector("The neighbours' vectors have different lengths.")
    return NeighbourList(
        [one.id for one in sent],
        [one.label for one in sent],
        similarities or None,
        vectors or None,
    )


def _decision_answer(lease: Lease, found: DecidedList, request_id: str) -> schemas.DecisionAnswer:
    """Describe the decision on neighbours that another store has found."""
    bundle, decided, sent = lease.bundle, found.decided, found.neighbours
    decision = decided.decision
    n = len(sent.ids)
    probabilities: list[float | None] = [None] * n
    if decision.match_probabilities is not None:
        probabilities = decision.match_probabilities.tolist()
    chosen = decision.result_set
    return schemas.DecisionAnswer(
        request_id=request_id,
        gallery=bundle.name,
        verdict=decision.verdict,
        reason=decision.reason,
        guaranteed=decision.guaranteed,
        roll_up=decision.roll_up,
        no_match_probability=decision.no_match_probability,
        absent=absent_share(
            bundle.retriever.calibration,
            decision,
            found.share_origin,
            lease.engine.operator.adopted_at,
        ),
        query=_described(lease, found, decision.assessment),
        neighbours=[
            schemas.DecidedNeighbour(
                id=sent.ids[place],
                label=sent.labels[place],
                similarity=float(decided.similarities[place]),
                match_probability=probabilities[place],
            )
            for place in range(n)
        ],
        result_set=None
        if chosen is None
        else result_set(
            chosen, [(sent.ids[place], sent.labels[place]) for place in chosen.places.tolist()]
        ),
        bundle=bundle_state(lease),
        timing_ms=milliseconds(found.seconds),
    )

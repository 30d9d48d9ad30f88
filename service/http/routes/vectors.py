"""The paths of queries without an image: a text, a vector, or neighbours from another store."""

from __future__ import annotations

from fastapi import Depends, Request

from model_store.errors import (
    GalleryNotFound,
    ImageTooLarge,
    InvalidFilter,
    InvalidText,
    InvalidVector,
    TextUnavailable,
    UnsupportedMediaType,
)
from model_store.vector_queries import NeighbourList, VectorQuery
from service import schemas
from service.access.access import counts_as_search
from service.http import answers
from service.http.answers import absent_share, bundle_state, query
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router, parameters_of
from service.http.routing import JSON, body_of
from service.serializers import milliseconds, result_set
from service.serving.lease import Lease
from service.serving.queries import DecidedList, SearchParameters

router = gallery_router("searching")

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
    request: Request, lease: LeaseOf, state: StateOf, body: schemas.TextSearchRequest
) -> schemas.SearchAnswer:
    """Search with a text, if the gallery's encoder has a text tower.

    Text queries need their own calibration, with captions. Without a calibration for texts, the
    verdict is `not_calibrated`.
    """
    found = await lease.search_text(body.text, parameters_of(body, request))
    answer = answers.search_answer(lease, found, request.state.request_id, body)
    answers.record(state.telemetry, lease, answer, found)
    return answer


@router.post(
    "/{gallery}/search/vector",
    operation_id="search_vector",
    responses=_ERRORS,
    dependencies=[Depends(counts_as_search), Depends(body_of(JSON))],
)
async def search_vector(
    request: Request, lease: LeaseOf, state: StateOf, body: schemas.VectorSearchRequest
) -> schemas.SearchAnswer:
    """Search with a vector that the gallery's encoder computed earlier or in another system.

    You can use the answer of `embed`: send its `direction` as `mean`, its `variance`, and its
    `outlier_score`.
    """
    found = await lease.search_vector(_query(body), parameters_of(body, request))
    answer = answers.search_answer(lease, found, request.state.request_id, body)
    answers.record(state.telemetry, lease, answer, found)
    return answer


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
        absent=absent_share(lease, decision, found.share_origin),
        query=query(bundle, found, decision.assessment, found.alpha),
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

"""The paths that check a gallery for its curator."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np
from fastapi import Depends, Query

from model_store.curation import LabelError, NearDuplicates, Rows, label_errors, near_duplicates
from model_store.errors import GalleryNotFound, InvalidCursor, OutdatedCursor
from service import schemas
from service.access.access import counts_as_search
from service.http import answers, cursors
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, PageCursor, gallery_router
from service.serving.curation import examined_page

router = gallery_router("items")

Limit = Annotated[
    int, Query(ge=1, le=100, description="Number of results after which a page ends.")
]


@router.get(
    "/{gallery}/label-errors",
    operation_id="list_label_errors",
    responses=responses(GalleryNotFound, InvalidCursor, OutdatedCursor),
    dependencies=[Depends(counts_as_search)],
)
async def list_label_errors(
    lease: LeaseOf,
    confidence: Annotated[
        float,
        Query(
            ge=0.5,
            le=1,
            description="Minimum share of the neighbours that have the suggested label; nearer "
            "neighbours have a larger weight.",
        ),
    ] = 0.8,
    limit: Limit = 50,
    cursor: PageCursor = None,
) -> schemas.LabelErrorList:
    """List items whose nearest neighbours have another label, page by page.

    A page ends after `limit` results or half a second of computation, so it can be empty before the
    last page. A cursor is valid for an hour, and only while the same bundle is served. Items
    without a label are not checked.
    """
    selection = cursors.Selection("confidence", repr(confidence))
    after = cursors.row_before(cursor, lease.bundle.manifest.id, lease.engine.secret, selection)

    def rows_of(one: LabelError) -> Rows:
        return np.append(one.neighbours, one.row)

    check = partial(label_errors, confidence=confidence)
    page = await lease.engine.compute(
        lambda: examined_page(lease.bundle, after, limit, check, rows_of)
    )
    return answers.label_error_list(lease, page, selection)


@router.get(
    "/{gallery}/near-duplicates",
    operation_id="list_near_duplicates",
    responses=responses(GalleryNotFound, InvalidCursor, OutdatedCursor),
    dependencies=[Depends(counts_as_search)],
)
async def list_near_duplicates(
    lease: LeaseOf,
    threshold: Annotated[
        float, Query(ge=0.5, le=1, description="Minimum similarity of near duplicates.")
    ] = 0.99,
    limit: Limit = 50,
    cursor: PageCursor = None,
) -> schemas.NearDuplicateList:
    """List items that have near duplicates in the gallery, page by page.

    Both items of a pair are listed, each with the other item as its duplicate. An item has at most
    20 near duplicates in the list. A page ends after `limit` results or half a second of
    computation, so it can be empty before the last page. A cursor is valid for an hour, and only
    while the same bundle is served.
    """
    selection = cursors.Selection("threshold", repr(threshold))
    after = cursors.row_before(cursor, lease.bundle.manifest.id, lease.engine.secret, selection)

    def rows_of(one: NearDuplicates) -> Rows:
        return np.append(one.duplicates, one.row)

    check = partial(near_duplicates, threshold=threshold)
    page = await lease.engine.compute(
        lambda: examined_page(lease.bundle, after, limit, check, rows_of)
    )
    return answers.near_duplicate_list(lease, page, selection)

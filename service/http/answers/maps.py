"""Answers about the map, which shows the items of a gallery in two dimensions."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_store.bundles.bundle import Bundle
from model_store.gallery_map import Colour, ItemPoints, Plane
from service import schemas
from service.http.answers.items import item_detail, picture_urls


def gallery_map(
    bundle: Bundle,
    plane: Plane,
    points: ItemPoints,
    colour_by: str,
    colours: tuple[Sequence[Colour], NDArray[np.uint8]],
) -> schemas.GalleryMap:
    """Describe the map of a gallery."""
    listed, codes = colours
    return schemas.GalleryMap(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_items=bundle.retriever.gallery.n_items,
        n_passing=points.n_passing,
        n_shown=len(points.rows),
        variance_shares=plane.shares.tolist(),
        colour_by=colour_by,
        colours=[
            schemas.MapColour(
                value=colour.value,
                least=colour.least,
                greatest=colour.greatest,
                n_items=colour.n_items,
            )
            for colour in listed
        ],
        rows=_encoded(points.rows, "<u4"),
        x=_encoded(points.positions[:, 0], "<u2"),
        y=_encoded(points.positions[:, 1], "<u2"),
        codes=_encoded(codes, "u1"),
    )


def map_items(bundle: Bundle, rows: Sequence[int]) -> schemas.MapItems:
    """Describe the items with these row numbers; numbers of deleted items are ignored."""
    gallery, urls = bundle.retriever.gallery, picture_urls(bundle)
    current = np.intersect1d(np.array(rows, dtype=np.int64), gallery.rows())
    return schemas.MapItems(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        items=[
            schemas.MapItem(row=row, **item_detail(item, urls).model_dump())
            for row, item in zip(current.tolist(), gallery.items(current), strict=True)
        ],
    )


def _encoded(numbers: NDArray[np.generic], kind: str) -> str:
    return base64.b64encode(numbers.astype(kind).tobytes()).decode()

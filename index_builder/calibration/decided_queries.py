"""Adds reviewed queries to the calibration queries that a bundle stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from index_builder.calibration.kept_queries import CalibrationInputs, Kept
from model_store.decision.outliers import averaged_features, averaging
from model_store.errors import ItemNotFound
from model_store.feedback import Decided, DrawnQuery
from model_store.gallery import Gallery
from model_store.half_precision import HalfRows
from model_store.truth import label_or_id

UNSAID = "\0 not said"
"""Label of a query whose true match is unknown. The query counts as a matched query with only wrong
results, so it never makes an error bound easier to meet."""

SOURCE = "decisions"
"""Name of the source of reviewed queries. It is not used if the bundle's queries have no
sources."""


def with_decisions(
    kept: CalibrationInputs, drawn: Sequence[DrawnQuery], gallery: Gallery
) -> CalibrationInputs:
    """Return the bundle's stored queries, followed by the reviewed queries.

    Parameters
    ----------
    drawn : see `drawn_queries`.
    gallery : the gallery with the items named in decisions.
    """
    truths = [_truth(one.said, gallery) for one in drawn]
    matched = [row for row, truth in enumerate(truths) if truth is not None]
    absent = [row for row, truth in enumerate(truths) if truth is None]
    unlabelled = kept.unlabelled
    if unlabelled is not None and matched:
        # No layer was fitted to a reviewed query, so the query's mean does not depend on its label.
        unlabelled = HalfRows.concatenate(
            [unlabelled, _rows([drawn[row] for row in matched], "mean")]
        )
    return replace(
        kept,
        unlabelled=unlabelled,
        matched=_joined(kept.matched, [drawn[row] for row in matched], [*filter(None, truths)]),
        withheld=_joined(kept.withheld, [drawn[row] for row in absent], [""] * len(absent)),
    )


def _truth(said: Decided | None, gallery: Gallery) -> str | None:
    """Return the true label of a query; None if the gallery has no match for the query.

    In a gallery without labels, return the id of the match.
    """
    if said is None or said.decision == "not_this_item":
        return UNSAID
    if said.decision in {"none_of_these", "new"} or said.item_id is None:
        return None
    if not gallery.labels:
        return said.item_id
    try:
        item = gallery.items(np.array([gallery.row(said.item_id)]))[0]
    except ItemNotFound:  # the item was removed, but its label may remain
        return said.label or said.item_id
    return label_or_id(item)


def _joined(kept: Kept, drawn: Sequence[DrawnQuery], labels: Sequence[str]) -> Kept:
    """Append the reviewed queries; each query is its own group."""
    if not drawn:
        return kept
    ids = tuple(one.embedded.query_id for one in drawn)
    names = [name or f"absent {one}" for name, one in zip(labels, ids, strict=True)]
    rows = [_rows(drawn, part) for part in ("mean", "variance", "features")]
    whole = rows[2].whole()
    rows[2] = HalfRows.of(averaged_features(whole, averaging(whole.shape[1])))
    return Kept(
        kept.ids + ids,
        kept.labels + tuple(names),
        kept.groups + tuple(f"query {one}" for one in ids),
        None if kept.sources is None else kept.sources + (SOURCE,) * len(ids),
        HalfRows.concatenate([kept.mean, rows[0]]),
        HalfRows.concatenate([kept.variance, rows[1]]),
        HalfRows.concatenate([kept.features, rows[2]]),
    )


def _rows(drawn: Sequence[DrawnQuery], part: str) -> HalfRows:
    return HalfRows.from_bytes([getattr(one.embedded, part) for one in drawn])

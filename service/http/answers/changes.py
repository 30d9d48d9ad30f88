"""Answers to writes that change a gallery, made from the receipts of the writes."""

from __future__ import annotations

from collections.abc import Sequence

from model_store.gallery import Receipt, Written
from service import schemas


def item_written(gallery: str, receipt: Receipt) -> schemas.ItemWritten:
    """Describe the receipt of a write with one item."""
    return _written(gallery, receipt, receipt.written[0])


def batch_written(gallery: str, ids: Sequence[str], receipt: Receipt) -> schemas.BatchWritten:
    """Describe the outcome of each upload of a batch; ``ids`` has the item ids in upload order."""
    problems, rest = receipt.note["problems"], iter(receipt.written)
    items = []
    for index, item_id in enumerate(ids):
        problem = problems.get(str(index))
        items.append(
            schemas.BatchItemWritten(
                index=index,
                id=item_id,
                status=200 if problem is None else problem["status"],
                written=_written(gallery, receipt, next(rest)) if problem is None else None,
                problem=None if problem is None else schemas.Problem(**problem),
            )
        )
    return schemas.BatchWritten(request_id=receipt.note["request_id"], gallery=gallery, items=items)


def _written(gallery: str, receipt: Receipt, written: Written) -> schemas.ItemWritten:
    return schemas.ItemWritten(
        request_id=receipt.note["request_id"],
        gallery=gallery,
        id=written.id,
        existed=written.existed,
        version=written.version,
    )

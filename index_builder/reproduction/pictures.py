"""Thumbnails for a report: most certain queries, least certain queries, and wrong first results."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index_builder.datasets import LabelledImages
from index_builder.reproduction.retrieval import RetrievalResults

N_SHOWN = 12
SIDE = 56
"""Maximum side of a thumbnail in pixels."""

Floats = NDArray[np.float64]


def pictures(
    results: RetrievalResults, uncertainties: Floats, confidences: Floats
) -> dict[str, Any]:
    """Choose the queries to show for a method.

    Parameters
    ----------
    uncertainties, confidences : (B,) for each query.

    Returns
    -------
    Lists of queries by name: ``surest``, ``least_sure``, and ``wrong`` with the most certain query
    first. Each query has a thumbnail, a label, the thumbnail and label of the first result, an
    uncertainty and a confidence.
    """
    order = np.argsort(uncertainties, kind="stable")
    wrong = order[~results.correct[order]]
    return {
        "surest": [_shown(results, row, uncertainties, confidences) for row in order[:N_SHOWN]],
        "least_sure": [
            _shown(results, row, uncertainties, confidences) for row in order[::-1][:N_SHOWN]
        ],
        "wrong": [_shown(results, row, uncertainties, confidences) for row in wrong[:N_SHOWN]],
    }


def _shown(
    results: RetrievalResults, row: np.int64, uncertainties: Floats, confidences: Floats
) -> dict[str, Any]:
    item = int(results.found[row, 0])
    return {
        "picture": data_uri(results.task.queries, int(row)),
        "label": results.task.queries.labels[row],
        "found": data_uri(results.task.gallery, item),
        "found_label": results.task.gallery.labels[item],
        "correct": bool(results.correct[row]),
        "uncertainty": float(uncertainties[row]),
        "confidence": float(confidences[row]),
    }


def data_uri(images: LabelledImages, position: int) -> str:
    """Return an image as a data URI: a small image as PNG, a large one as a WebP thumbnail."""
    image = Image.fromarray(images.pixels(position))
    buffer = io.BytesIO()
    if max(image.size) <= SIDE:
        image.save(buffer, "PNG", optimize=True)
        kind = "png"
    else:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        image.save(buffer, "WEBP", quality=80)
        kind = "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"

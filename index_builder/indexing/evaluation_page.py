"""Shows an evaluation as one HTML page: numbers, curves, and the most confident errors."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from index_builder.calibration.evaluate import Evaluation
from index_builder.datasets import LabelledImages
from index_builder.output import templates_of
from model_store.answers import Answer
from model_store.gallery import Gallery
from model_store.truth import label_or_id
from vouch_search import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_SHOWN = 24
SIDE = 160
"""Longest side of a query's picture in pixels; thumbnails of items have the same longest side."""


def page(evaluation: Evaluation, gallery: Gallery, name: str) -> str:
    """Return the HTML page of an evaluation; ``name`` is the name of the gallery."""
    stream = evaluation.report["stream"]
    return rendered(
        "evaluation.html.jinja",
        name=name,
        report=evaluation.report,
        stream=stream,
        errors=[
            _error(evaluation, gallery, int(row)) for row in evaluation.surest_errors[:N_SHOWN]
        ],
        n_errors=len(evaluation.surest_errors),
        charts=_charts(evaluation),
    )


def _charts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the caption and the SVG of each chart of an evaluation."""
    stream, absent = evaluation.report["stream"], evaluation.absent
    charts: list[tuple[str, Callable[[Axes], object]]] = [
        ("Reliability: calibrated probabilities lie on the diagonal. Bars: exact 95 % intervals.",
         lambda ax: plots.reliability(stream, ax=ax)),
        ("Risk and coverage: share of wrong first results among the most confident answers.",
         lambda ax: plots.risk_coverage(stream, ax=ax)),
    ]  # fmt: skip
    if absent.any() and not absent.all():
        charts.append(
            (
                "ROC curves: queries with a match against absent queries, at every threshold.",
                partial(_roc, evaluation),
            )
        )
    return [(caption, plots.svg(draw, caption)) for caption, draw in charts]


def _roc(evaluation: Evaluation, ax: Axes) -> None:
    """Draw two ROC curves: by match probability and by similarity."""
    absent, answers = evaluation.absent, evaluation.answers
    of_answers = {
        "match probability": [1 - (one.decision.no_match_probability or 0) for one in answers],
        "similarity": [one.matches[0].similarity for one in answers],
    }
    for name, values in of_answers.items():
        found = np.array(values)
        plots.roc(found[~absent], found[absent], label=name, ax=ax)


def rendered(template: str, **content: Any) -> str:  # noqa: ANN401 - whatever it shows
    """Render a template of this package."""
    return templates_of("index_builder.indexing").get_template(template).render(content)


def _error(evaluation: Evaluation, gallery: Gallery, row: int) -> dict[str, Any]:
    """Describe a query whose first item is wrong."""
    answer: Answer = evaluation.answers[row]
    first = answer.matches[0]
    label = evaluation.queries.labels[row]
    return {
        "id": evaluation.queries.ids[row],
        "picture": picture_of(evaluation.queries, row),
        "truth": "nothing in the gallery" if evaluation.absent[row] else label,
        "found": label_or_id(first),
        "found_picture": thumbnail_of(gallery, first.id),
        "probability": first.match_probability,
        "verdict": answer.decision.verdict,
        "roll_up": answer.decision.roll_up,
    }


def picture_of(queries: LabelledImages, row: int) -> str | None:
    """Return a query's picture as a data URI; None for a vector."""
    pixels = queries.pixels(row, SIDE)
    if pixels.ndim != 3:
        return None
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80)
    return _uri("image/webp", buffer.getvalue())


def thumbnail_of(gallery: Gallery, item_id: str) -> str | None:
    """Return an item's thumbnail as a data URI; None if the item has no thumbnail."""
    found = gallery.thumbnail(item_id)
    return _uri(found.media_type, found.data) if found.data else None


def _uri(media_type: str, data: bytes) -> str:
    return f"data:{html.escape(media_type)};base64,{base64.b64encode(data).decode()}"

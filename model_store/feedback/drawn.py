"""Queries that were drawn at random and reviewed: unbiased evidence about served answers.

Exact bounds need queries that were drawn with equal probability. Most draws prefer doubtful
answers. But a part of the draws has the same probability for all queries. The module uses only this
part. Queries that reviewers chose are not used, because reviewers may prefer wrong answers.
Undecided queries may be difficult queries, so the result would be biased if many of them were left
out. So the drawn queries are sorted by age, oldest first. The module uses as many of the oldest
queries as possible, with at most a tenth of them undecided.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_store.feedback import cases
from model_store.feedback.agreement import agreed
from model_store.feedback.answered import AnsweredQuery
from model_store.feedback.decisions import Decided, listed
from model_store.feedback.file import opened

MOST_OPEN = 0.1
"""Maximum share of undecided queries among the used queries."""


@dataclass(frozen=True, slots=True)
class DrawnQuery:
    """A query that was drawn at random.

    Attributes
    ----------
    embedded : embedding of the query.
    said : decision on which enough reviewers agree; None if too few agree.
    """

    embedded: AnsweredQuery
    said: Decided | None


def drawn_queries(path: Path, gallery: str, encoder: str) -> list[DrawnQuery]:
    """Return the oldest drawn queries: as many as possible with a small share of undecided queries.

    Parameters
    ----------
    path : path of the feedback file.
    gallery : name of the gallery in the file.
    encoder : fingerprint of the encoder that computed the embeddings.
    """
    with opened(path) as connection:
        rows = connection.execute(
            "SELECT query_id, mean, variance, features FROM cases "
            "JOIN answered USING (gallery, encoder, query_id) "
            "WHERE gallery = ? AND encoder = ?",
            (gallery, encoder),
        )
        embedded = {row[0]: AnsweredQuery(*row) for row in rows}
        drawn = []
        for case in cases.listed(connection, {"gallery": gallery, "encoder": encoder}):
            if not case.drawn_evenly or case.query_id not in embedded:
                continue
            made = listed(connection, {"gallery": gallery, "query_id": case.query_id})
            agreeing = agreed(made, case.wanted)
            said = agreeing[-1] if agreeing else None
            drawn.append(DrawnQuery(embedded[case.query_id], said))
    n_open, end = 0, 0
    for number, one in enumerate(drawn, start=1):
        n_open += one.said is None
        if one.said is not None and n_open <= MOST_OPEN * number:
            end = number
    return drawn[:end]

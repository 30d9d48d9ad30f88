"""Queries that were drawn at random and reviewed: unbiased evidence about served answers.

Exact bounds need queries drawn with equal probability. Draws prefer doubtful answers; only those
count here that would have been drawn with the lowest probability, the same for every query.
A reviewer who chooses queries may choose wrong answers. So only queries that were drawn before
their truth was known count, the oldest in a row, as far as nearly all of them are settled; those
in the row that are not were maybe left because they are hard.
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
"""Share of the queries of a row that may be undecided."""


@dataclass(frozen=True, slots=True)
class DrawnQuery:
    """A query that was drawn at random.

    Attributes
    ----------
    embedded : what the encoder made of it.
    said : what enough reviewers agree on; None without a decision, or if they disagree.
    """

    embedded: AnsweredQuery
    said: Decided | None


def drawn_queries(path: Path, gallery: str, encoder: str) -> list[DrawnQuery]:
    """Return the queries that were drawn, oldest first, as far as nearly all are decided.

    Parameters
    ----------
    path : of the file of feedback.
    gallery : the key that it has there.
    encoder : fingerprint of what the embeddings are of.
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

"""Stores embeddings of answered queries, for decisions after the cache has dropped the queries."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from model_store.encoder.contract import Embeddings
from model_store.feedback import AnsweredQueries, AnsweredQuery
from model_store.half_precision import HalfRows

MOST_WAITING = 10_000
"""Maximum number of queries that wait to be written; the oldest are dropped."""


class RetainedQueries:
    """Stores the embeddings of one gallery's queries; writes them every few seconds.

    A crash loses the unwritten queries, but no decisions.

    Parameters
    ----------
    gallery, encoder : name of the gallery, and fingerprint of its encoder.
    kept : the queries of all galleries; None if no queries are stored.
    """

    def __init__(self, gallery: str, encoder: str, kept: AnsweredQueries | None) -> None:
        self._gallery, self._encoder, self._kept = gallery, encoder, kept
        self._waiting: OrderedDict[str, AnsweredQuery] = OrderedDict()
        self._writing = asyncio.Lock()

    def note(self, query_id: str, embeddings: Embeddings) -> None:
        """Queue the ``embeddings`` of one image query for writing."""
        if self._kept is None:
            return
        parts = (embeddings.mean, embeddings.variance, embeddings.features)
        rows = (HalfRows.of(part).to_bytes()[0] for part in parts)
        self._waiting[query_id] = AnsweredQuery(query_id, *rows)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    async def find(self, query_id: str) -> Embeddings | None:
        """Return the rounded embeddings of a query; None if they are not stored."""
        if self._kept is None:
            return None
        found = self._waiting.get(query_id)
        if found is None:
            found = await asyncio.to_thread(self._kept.find, self._gallery, self._encoder, query_id)
        return None if found is None else Embeddings(*(part.whole() for part in found.rows()))

    async def keep(self) -> None:
        """Write waiting queries; delete expired ones."""
        if self._kept is None:
            return
        if not self._kept.keeps_all:  # queries under review are written with their cases
            self._waiting.clear()
            return
        async with self._writing:
            queries = list(self._waiting.values())
            await asyncio.to_thread(self._kept.add, self._gallery, self._encoder, queries)
            for one in queries:
                if self._waiting.get(one.query_id) is one:
                    del self._waiting[one.query_id]

    async def forget(self, query_id: str) -> None:
        """Delete a query, on request."""
        self._waiting.pop(query_id, None)
        if self._kept is not None:
            await asyncio.to_thread(self._kept.forget, self._gallery, query_id)

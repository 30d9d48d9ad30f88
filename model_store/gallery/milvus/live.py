"""A gallery in Milvus that takes changes: whole or not at all, though Milvus has no transactions.

A change is written to a log beside the bundle first (`ChangesFile`, as that of a gallery in files),
with what is to be answered; then Milvus is told; then the log is emptied up to there. What a crash
or an outage kept from Milvus is told when the gallery is next opened, looked at or written to, and
telling it twice does no harm: a row is found by its id. So a change that was begun is there whole
in the end, and a request that is sent again is known again.

Those who write have the directory of the log in common, as with a gallery in files; on other
machines the gallery is searched, and finds what was written a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from model_store.encoder.contract import Embeddings
from model_store.errors import DatasetError, StorageBusy, WriteError, WriteRefused
from model_store.gallery.live.log import ChangesFile, Transaction
from model_store.gallery.milvus.entities import write_entity
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.writable import (
    NO_NOTE,
    Change,
    Delete,
    Receipt,
    Retry,
    Upsert,
    plan_writes,
)


class MilvusLive:
    """A gallery in Milvus and the log of changes that it is told of; obeys `Writable`.

    Parameters
    ----------
    admit : called in each transaction, before anything is written; raises where the gallery is not
        to be written to any more.

    Raises
    ------
    BundleMismatch, StorageFailed : the log does not belong to the bundle, or cannot be read.
    GalleryUnavailable : Milvus does not answer; so does every method.
    """

    def __init__(
        self, gallery: MilvusGallery, log: ChangesFile, admit: Callable[[], None] = lambda: None
    ) -> None:
        self._gallery, self._log, self._admit = gallery, log, admit
        log.verify()
        self.refresh()

    def snapshot(self, version: int | None = None) -> MilvusGallery:  # noqa: ARG002
        """The gallery as it is now: there is no other."""
        return self._gallery

    def refresh(self) -> MilvusGallery:
        """Tell Milvus what it has not heard of yet, and count what is there."""
        if self._log.after(self._log.start()):
            with suppress(StorageBusy):  # then whoever writes tells it
                self._tell()
        self._gallery.glance()
        return self._gallery

    def mark(self) -> tuple[int, int] | None:
        """See `ChangesFile.mark`; what others write passes through the log too."""
        return self._log.mark()

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return the receipt of a request that was carried out, else None; or raise `KeyReused`."""
        before = self._log.receipt(retry)
        if before is not None:
            self.refresh()
        return before

    def commit(
        self,
        writes: Sequence[Upsert | Delete],
        retry: Retry | None = None,
        note: Mapping[str, Any] = NO_NOTE,
    ) -> Receipt:
        """Make changes, all of them or none; see `Writable`.

        Raises
        ------
        GalleryUnavailable : Milvus does not answer. The change is made when it does, or not at all;
            the request may be sent again.
        """
        with self._writing() as turn:
            before = None if retry is None else turn.receipt(retry)
            if before is not None:
                return before
            version, there = turn.last(), self._gallery.existing([write.id for write in writes])
            written = plan_writes(writes, there.__contains__, self._gallery.n_items, version)
            for write in writes:
                _require_taken(write)
            receipt = Receipt(tuple(written), note)
            turn.add(writes)
            if retry is not None:
                turn.remember(retry, receipt)
        self._tell()
        return receipt

    def close(self) -> None:
        """Let go of the log."""
        self._log.close()

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """A turn at writing, of a gallery that has been told everything."""
        with self._log.transaction() as turn:
            self._admit()
            self._deliver(turn.after(turn.start()))
            self._gallery.glance()
            yield turn

    def _tell(self) -> None:
        """Tell Milvus what it has not heard of yet, and empty the log."""
        delivered = False
        try:
            with self._log.transaction() as turn:
                pending = turn.after(turn.start())
                self._deliver(pending)
                delivered = True
                if pending:
                    turn.truncate(pending[-1].sequence)
        except WriteError:  # of an emptied log no more is lost than room
            if not delivered:
                raise

    def _deliver(self, changes: Sequence[Change]) -> None:
        """Let Milvus have changes of the log; of several of an item the last one counts."""
        last = {change.id: change for change in changes}
        puts = [change.sequence for change in last.values() if change.vector is not None]
        if puts:
            upserts = list(self._log.upserts(puts))
            self._gallery.upsert([upsert.item for upsert in upserts], _embeddings(upserts))
        gone = [change.id for change in last.values() if change.vector is None]
        there = self._gallery.existing(gone)
        if there:
            self._gallery.delete([item_id for item_id in gone if item_id in there])


def _embeddings(upserts: Sequence[Upsert]) -> Embeddings:
    mean, variance = (
        np.stack([getattr(upsert.vector, name) for upsert in upserts])
        for name in ("mean", "variance")
    )
    return Embeddings(mean, variance, np.empty((len(mean), 0), dtype=np.float32))


def _require_taken(write: Upsert | Delete) -> None:
    """Refuse what Milvus would refuse, before it is in the log."""
    if isinstance(write, Delete):
        return
    try:
        write_entity(0, write.item, write.vector.mean, write.vector.variance)
    except DatasetError as error:
        raise WriteRefused(str(error)) from error

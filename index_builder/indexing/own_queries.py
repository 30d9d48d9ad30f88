"""Reads the user's queries: images or vectors, each with its true match.

The queries have the same formats as a collection. The column ``item`` has the id of the gallery
item that a query shows, or the column ``label`` has the item's label. A query without item and
label matches nothing in the gallery. If matches are defined by place, the columns are ``latitude``
and ``longitude``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.retrieval import places_of_items
from index_builder.datasets import LabelledImages
from index_builder.datasets.image_files import N_SHOWN, LeftOut, plain_label
from index_builder.datasets.images import Pixels
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.catalogue import Catalogue
from index_builder.progress import console, note, track, warn
from index_builder.storage import Storage
from index_builder.vectors.encoder import StoredEncoder
from model_store.errors import DatasetError, ItemNotFound
from model_store.gallery import Gallery
from model_store.images import ImageLimits
from model_store.machine import usable_processors
from model_store.truth import LATITUDE, LONGITUDE, Within, label_or_id, positions_of, wgs84

from .blocks import Entry, Failure
from .engines import local_engine
from .fetching import Fetching, reader
from .prepare import read_vector
from .sources import Source
from .sources.manifest import COLUMNS


def label_of_item(gallery: Gallery, name: str, origin: str, column: str) -> str:
    """Return the label of the item that a query shows.

    If no item of the gallery has a label, the function returns the id of the item instead.

    Parameters
    ----------
    origin, column : line and column that contain the item's id, for messages.

    Raises
    ------
    DatasetError : the gallery has no such item, or the item has no label although other items have
        labels.
    """
    try:
        item = gallery.item(name)
    except ItemNotFound as error:
        raise DatasetError(
            f"{origin}: the query shows the item {name!r}. {error} If the query shows no item of "
            f"the gallery, leave {column} empty."
        ) from error
    if not gallery.labels:
        return item.id
    if item.label is None:
        raise DatasetError(
            f"{origin}: the query shows the item {name!r}, which has no label, but other items "
            "have labels. Give the item a label, or leave the query out."
        )
    return item.label


ITEM = "item"
"""Name of the column with the id of the item that a query shows."""

TEXTS = COLUMNS | {ITEM}
"""Columns to read as text, not as numbers: the item 2019.10 is not the item 2019.1."""

_NOWHERE = "\0"
"""A query without a match and without a label gets a label that begins with this character, and
ends with the query's group. No label in a gallery begins with this character."""


_NULL_ISLAND = wgs84(np.zeros(1), np.zeros(1))
"""The place at latitude 0 and longitude 0, which some devices report if they know no place."""


@dataclass(frozen=True, slots=True)
class QueryReader:
    """Reads and embeds queries; the embeddings are stored in the cache of the encoder.

    Attributes
    ----------
    scratch : directory for temporary files.
    limits : maximum size of an image.
    storage : reads remote images.
    """

    encoder: StoredEncoder
    gallery: Gallery
    scratch: Path
    limits: ImageLimits
    storage: Storage

    def queries(self, source: Source, within: float | None = None) -> QuerySet:
        """Return queries with their true matches; print the unreadable queries.

        Parameters
        ----------
        within : maximum distance in metres between a query and its matches; None if equal labels
            define matches.

        Raises
        ------
        DatasetError : the source is invalid, or names an item that the gallery does not have.
        """
        gallery, entries = self.gallery, _entries(source, self.scratch)
        places: NDArray[np.float64] | None = None
        if within is None:
            truth = {entry.id: _truth(entry, gallery) for entry in entries}  # before the embedding
            _warn_of_similar(set(truth.values()), set(gallery.labels))
        else:
            entries, places, truth = _by_place(entries, gallery, within)
            place_of = dict(zip([entry.id for entry in entries], places, strict=True))
        entries, hashes = self._embedded(entries)
        groups = [
            _group(entry, gallery, hashes[entry.id], of_place=within is not None)
            for entry in entries
        ]
        labels = [
            _NOWHERE + group if truth[entry.id] == _NOWHERE else truth[entry.id]
            for entry, group in zip(entries, groups, strict=True)
        ]
        images = self._images(entries, labels, groups, hashes)
        if places is not None:
            images = replace(images, places=np.array([place_of[entry.id] for entry in entries]))
        if within is None:
            held = set(gallery.labels) or {item.id for item in gallery.items(gallery.rows())}
            matched = np.array([label in held for label in labels], dtype=bool)
        else:  # the nearest item may lack a label, although other items have labels
            matched = np.array([truth[entry.id] != _NOWHERE for entry in entries], dtype=bool)
        present, absent = np.flatnonzero(matched), np.flatnonzero(~matched)
        return QuerySet(images.at(present), images.at(absent), None)

    def items(self, source: Source) -> LabelledImages:
        """Read the source of the gallery again, but only images that are items.

        Unreadable images are printed.

        Raises
        ------
        DatasetError : the source is invalid, or has none of the gallery's items.
        """
        rows = np.arange(self.gallery.n_items)
        label_of = {item.id: label_or_id(item) for item in self.gallery.items(rows)}
        kept = [entry for entry in _entries(source, self.scratch) if entry.id in label_of]
        if not kept:
            advice = "Name the source that the gallery was indexed from; ids must be equal."
            if not self.encoder.metadata.takes_images:
                advice += " Name the manifest of the vectors with --gallery-items."
            raise DatasetError(
                f"The source named by --gallery has none of the gallery's items. {advice}"
            )
        if len(kept) < len(label_of):
            n_missing = len(label_of) - len({entry.id for entry in kept})
            warn(f"{n_missing:,} of {len(label_of):,} items are not in --gallery.")
        kept, hashes = self._embedded(kept)
        labels = [label_of[entry.id] for entry in kept]
        groups = [entry.group or hashes[entry.id] for entry in kept]
        return self._images(kept, labels, groups, hashes)

    def _embedded(self, entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, str]]:
        """Embed entries; return the embedded entries and their hashes by id; print the others."""
        fetching = Fetching(self.storage, self.scratch / "fetched", self.limits)
        n_processes = usable_processors()
        hashes: dict[str, str] = {}
        failures: dict[str, Failure] = {}
        with (
            closing(Catalogue(self.scratch / "queries.sqlite", entries)) as catalogue,
            closing(local_engine(self.encoder, n_processes, self.limits, fetching)) as engine,
        ):
            tasks = ((block, "") for block in catalogue.blocks())
            for shard in track(engine.shards(tasks), "embedding", catalogue.n_blocks):
                hashes.update(zip(shard.ids, shard.hashes, strict=True))
                failures.update(shard.failures)
        for name, failure in list(failures.items())[:N_SHOWN]:
            note(f"left out: {name}: {failure.reason}")
        if len(failures) > N_SHOWN:
            console.print(f"left out: {len(failures) - N_SHOWN:,} more")
        return [entry for entry in entries if entry.id in hashes], hashes

    def _images(
        self,
        entries: Sequence[Entry],
        labels: Sequence[str],
        groups: Sequence[str],
        hashes: Mapping[str, str],
    ) -> LabelledImages:
        """Convert entries to images."""
        read_image = reader(self.storage, self.limits)

        def read(row: int, smallest_side: int | None) -> Pixels:
            place = entries[row].place
            takes_images = self.encoder.metadata.takes_images
            return read_image(place, smallest_side) if takes_images else read_vector(place)

        sources = tuple(entry.source or "" for entry in entries)
        return LabelledImages(
            tuple(entry.id for entry in entries),
            tuple(labels),
            read,
            np.arange(len(entries)),
            tuple(groups),
            sources if any(sources) else None,
            lambda row: bytes.fromhex(hashes[entries[row].id]),
        )


def _entries(source: Source, scratch: Path) -> list[Entry]:
    """Return the entries of a source; raise an error if there are none."""
    left_out = LeftOut()
    entries = list(source.entries(scratch, left_out))
    if not entries:
        nothing = "There are no queries in the source. Name another, or add some."
        raise DatasetError(f"{nothing} {left_out.sentence}".strip())
    for sentence in left_out.sentences:
        warn(sentence)
    return entries


def _truth(entry: Entry, gallery: Gallery) -> str:
    """Return the label of a query's matches; `_NOWHERE` if the query has no match and no label."""
    name = entry.metadata.get(ITEM)
    if name is not None:
        return label_of_item(gallery, str(name), entry.origin, ITEM)
    return _NOWHERE if entry.label is None else entry.label


def _group(entry: Entry, gallery: Gallery, content: str, *, of_place: bool) -> str:
    """Return the group of a query; queries of one group are not independent.

    Without a group, all queries about one item form a group, and so do copies of one image.

    Parameters
    ----------
    content : hash of the query.
    of_place : whether places define matches; the query's item and label then have no effect.
    """
    if of_place or entry.group:
        return entry.group or content
    item = entry.metadata.get(ITEM)
    if item is None and not gallery.labels:
        item = entry.label  # names an item
    return content if item is None else f"item {item}"


def _warn_of_similar(labels: set[str], known: set[str]) -> None:
    """Warn of query labels that differ from a gallery label only in case, spaces or Unicode form.

    Such a query counts as a query without a match.
    """
    label_of = {plain_label(label): label for label in sorted(known)}
    found = [
        (one, label_of[plain_label(one)]) for one in labels - known if plain_label(one) in label_of
    ]
    if not found:
        return
    shown = ", ".join(f"{one!r} ({other!r})" for one, other in sorted(found)[:N_SHOWN])
    warn(
        f"{len(found):,} labels of queries differ from a label of the gallery (in brackets) only "
        f"in case, spaces or Unicode form: {shown}. Their queries count as queries without a "
        "match. If the labels mean the same, use one spelling."
    )


def _by_place(
    entries: Sequence[Entry], gallery: Gallery, within: float
) -> tuple[list[Entry], NDArray[np.float64], dict[str, str]]:
    """Return the queries that have a place, their places (n, 3) and their true matches.

    The true match is the label of the nearest item, by id of the query. A query without a match has
    `_NOWHERE`. It is not known whether a query without a place has a match, so such queries are
    left out; their number is printed.

    Raises
    ------
    DatasetError : the place of a query is invalid, or no item or no query has a place.
    """
    fields, origins = [one.metadata for one in entries], [one.origin for one in entries]
    invalid: list[str] = []
    near = Within(positions_of(fields, origins), places_of_items(gallery, invalid), within)
    if invalid:
        warn(f"Items with an invalid place: {len(invalid):,}; for example {invalid[0]}")
    for places, whose in ((near.queries, "query"), (near.items, "item of the gallery")):
        if not np.isfinite(places).any():
            raise DatasetError(
                f"--within defines matches by place, but no {whose} has a place. Add "
                f"{LATITUDE} and {LONGITUDE} in degrees, as columns or fields of the metadata."
            )
    known = np.isfinite(near.queries[:, 0])
    kept = [entry for entry, has_place in zip(entries, known.tolist(), strict=True) if has_place]
    if len(kept) < len(entries):
        n_left_out = len(entries) - len(kept)
        warn(f"left out: {n_left_out:,} of {len(entries):,} queries, because they have no place.")
    of_items = near.items[gallery.rows()]  # without the rows of deleted items
    n_without = int(np.isnan(of_items).any(axis=1).sum())
    if n_without:
        warn(
            f"{n_without:,} of {len(of_items):,} items have no place, so they are never a match. A "
            "query whose first result has no place gets no `match`."
        )
    for places, whose in ((near.queries, "queries"), (of_items, "items")):
        n_at_zero = int((places == _NULL_ISLAND).all(axis=1).sum())
        if n_at_zero:
            warn(
                f"{n_at_zero:,} of {len(places):,} {whose} are at latitude 0 and longitude 0. If "
                "their places are not known, leave both columns empty."
            )
    truth: dict[str, str] = {}
    for entry, row in zip(kept, near.nearest()[known], strict=True):
        truth[entry.id] = _NOWHERE
        if row >= 0:
            (item,) = gallery.items(np.array([row]))
            truth[entry.id] = label_or_id(item)
    return kept, near.queries[known], truth

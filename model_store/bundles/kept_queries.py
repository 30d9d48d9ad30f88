"""Data of a bundle for a later calibration without images: queries, and features of items.

A stored query consists of an embedding, in half precision, and a label.

A gallery itself stores no features. With the features of a random sample of its items, the outlier
detector can be fitted again without images. An item that was added to the live gallery can be a
calibration query. The results of this query then exclude the item itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision.outliers import averaged_features, averaging
from model_store.encoder.contract import Embeddings
from model_store.errors import ItemNotFound
from model_store.gallery import Gallery, GallerySnapshot
from model_store.gallery.protocol import find_row
from model_store.items import series_in
from model_store.table import SHARED, HalfRows, Table

ITEM_FEATURES_FILE = "item_features.npz"

MOST_ITEMS = 10_000
"""Approximate maximum number of items in the sample. With 1,280 features, a sample takes 26 MB.

The features of all items are needed to recalibrate a gallery with a last layer that was fitted to
the items; above all, to judge labels of few items.
"""


@dataclass(frozen=True, slots=True)
class ItemFeatures(Table):
    """The features of n items.

    Attributes
    ----------
    ids : (n,) ids of the items.
    groups : (n,) groups of the items; items of one group show the same object.
    features : (n, F) features. If there are more than `MOST_FEATURES`, adjacent features are
        averaged.
    was_put : (n,) True for each item that was added after the calibration queries were chosen.
    share : share of the gallery's items that is sampled.
    """

    ids: tuple[str, ...]
    groups: tuple[str, ...]
    features: HalfRows
    was_put: NDArray[np.bool_]
    share: float = field(metadata=SHARED)

    def updated(self, snapshot: GallerySnapshot) -> ItemFeatures:
        """Return the sample without the removed items, and with some of the added items.

        A hash of an added item's id, or of its group, decides whether the item is sampled. So equal
        changes give equal samples, with complete groups. An item with a new label and the same
        embedding keeps its features. For the groups of added items, see `series_of`.
        """
        put = set(snapshot.appended_ids()) - snapshot.edited_ids()
        rows = [
            row
            for row, item_id in enumerate(self.ids)
            if item_id not in put and find_row(snapshot, item_id) is not None
        ]
        kept = self.at(rows)
        put_before = [kept.ids[row] for row in np.flatnonzero(kept.was_put)]
        group_of = {one: f"item {one}" for one in (*put_before, *put)}
        named = series_of(snapshot, list(group_of))
        group_of |= {one: f"group {series}" for one, series in named.items()}
        known = zip(kept.ids, kept.groups, strict=True)
        kept = replace(kept, groups=tuple(group_of.get(one, group) for one, group in known))
        drawn = [one for one in sorted(put) if _draw(named.get(one, one), "put") < self.share]
        found = snapshot.put_features(drawn)
        if found:
            whole = HalfRows.from_bytes(list(found.values())).whole()
            features = averaged_features(whole, averaging(whole.shape[1]))
            fresh = ItemFeatures(
                tuple(found),
                tuple(group_of[item_id] for item_id in found),
                HalfRows.of(features),
                np.ones(len(found), dtype=bool),
                self.share,
            )
            kept = ItemFeatures.concatenate([kept, fresh])
        return kept.thinned()

    def thinned(self) -> ItemFeatures:
        """Return a subsample of about `MOST_ITEMS` items, in which all groups are complete."""
        rate = MOST_ITEMS / max(len(self), 1)
        if rate >= 1:
            return self
        salt = f"{len(self)}"
        rows = [row for row, group in enumerate(self.groups) if _draw(group, salt) < rate]
        return replace(self.at(rows), share=self.share * rate)

    def save(self, directory: Path) -> None:
        """Write to ``directory``."""
        np.savez(
            directory / ITEM_FEATURES_FILE,
            names=packed_names([self.ids, self.groups]),
            values=self.features.values,
            scales=self.features.scales,
            was_put=self.was_put,
            share=np.array(self.share),
        )

    @classmethod
    def load(cls, directory: Path) -> ItemFeatures | None:
        """Read the file that `save` wrote; None if ``directory`` has no such file."""
        path = directory / ITEM_FEATURES_FILE
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as arrays:
            ids, groups = unpacked_names(arrays["names"])
            return cls(
                tuple(ids),
                tuple(groups),
                HalfRows(arrays["values"], arrays["scales"]),
                arrays["was_put"],
                float(arrays["share"]),
            )


def series_of(gallery: Gallery, ids: Sequence[str]) -> dict[str, str]:
    """Return the series of the items ``ids`` whose metadata name one, by id.

    For series see `series_in`. With the prefix ``group``, it is the key
    that a build gives to the same group, so an added photograph can join a series of the build.
    """
    rows = np.array([gallery.row(one) for one in ids], dtype=np.int64)
    named = {item.id: series_in(item.metadata) for item in gallery.items(rows)}
    return {item_id: series for item_id, series in named.items() if series is not None}


def packed_names(lists: Sequence[Sequence[str] | None]) -> NDArray[np.uint8]:
    """Convert lists of texts to an array of bytes, because an npz file contains only arrays."""
    text = json.dumps([None if one is None else list(one) for one in lists], ensure_ascii=False)
    return np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)


def unpacked_names(packed: NDArray[np.uint8]) -> list[list[str]]:
    """Convert the result of `packed_names` back to lists."""
    names: list[list[str]] = json.loads(packed.tobytes().decode(errors="surrogatepass"))
    return names


def _draw(item_id: str, salt: str) -> float:
    """Return a number in [0, 1) that depends only on the id and ``salt``."""
    content = f"{salt} {item_id}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") / 2**64


KEPT_QUERIES_FILE = "calibration_queries.npz"

BUILD_QUERIES_FILE = "build_queries.npz"
"""The stored queries of the build, if a later calibration has replaced them in
`KEPT_QUERIES_FILE`. Only the build knows which labels the encoder was trained on."""

_KINDS = ("matched", "withheld")
_PARTS = ("mean", "variance", "features")


@dataclass(frozen=True, slots=True)
class Kept(Table):
    """B queries of one kind.

    Attributes
    ----------
    labels, groups, sources : (B,), see `LabelledImages`.
    mean, variance, features : embeddings (B, D), (B, D) and (B, F). If there are many features,
        adjacent features are averaged.
    """

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[str, ...]
    sources: tuple[str, ...] | None
    mean: HalfRows
    variance: HalfRows
    features: HalfRows

    def embeddings(self) -> Embeddings:
        """Return the embeddings of the stored queries."""
        return Embeddings(self.mean.whole(), self.variance.whole(), self.features.whole())


@dataclass(frozen=True, slots=True)
class CalibrationInputs:
    """All inputs of a calibration, except the gallery.

    Attributes
    ----------
    matched, withheld : queries with a match, and queries without a match.
    are_views, unseen : see `calibrate_gallery`.
    seed : seed of the calibration.
    labels : labels that the gallery had when the queries were chosen; empty in bundles of earlier
        releases.
    unlabelled : (B, D), see `ItemQueries.unlabelled`: embedding means of the matched queries. None
        if the matched queries are not items.
    not_fitted : ids of the items to which the last layer was not fitted, although it was fitted to
        the other items that the gallery had at that time.
    """

    matched: Kept
    withheld: Kept
    are_views: bool
    unseen: bool
    seed: int
    labels: tuple[str, ...] = ()
    unlabelled: HalfRows | None = None
    not_fitted: tuple[str, ...] = ()

    def relabelled(self, gallery: Gallery, renamed: Mapping[str, str]) -> CalibrationInputs:
        """Return the queries with the current labels of the gallery.

        A query that is an item gets the current label of the item. If the gallery has no labels,
        the label of a view is the id of the item. If the gallery has labels, views of unlabelled
        items are left out. A view of an unlabelled item is not an absent query, because the gallery
        contains the item. The view has no match either, because the item has no label.

        Parameters
        ----------
        renamed : labels that were renamed since the queries were chosen, old → new.
        """

        def now(part: Kept) -> Kept:
            labels = [renamed.get(label, label) for label in part.labels]
            if self.unlabelled is not None and part is self.matched:
                for place, item_id in enumerate(part.ids):
                    labels[place] = _label_of(gallery, item_id) or labels[place]
            if self.are_views and gallery.labels:
                of_items = [_label_of(gallery, item_id) for item_id in part.labels]
                rows = np.array([n for n, label in enumerate(of_items) if label], dtype=np.int64)
                return replace(part.at(rows), labels=tuple(filter(None, of_items)))
            return replace(part, labels=tuple(labels))

        known = dict.fromkeys(renamed.get(label, label) for label in self.labels)
        return replace(
            self, matched=now(self.matched), withheld=now(self.withheld), labels=tuple(known)
        )

    def save(self, directory: Path) -> None:
        """Write to ``directory``."""
        arrays: dict[str, NDArray[Any]] = dict(_arrays(self))
        settings = [self.are_views, self.unseen, self.seed]
        np.savez(
            directory / KEPT_QUERIES_FILE,
            settings=np.array(settings, np.int64),
            labels=packed_names([self.labels]),
            not_fitted=packed_names([self.not_fitted]),
            **arrays,  # type: ignore[arg-type] # numpy's stub
        )

    @classmethod
    def load(cls, directory: Path, name: str = KEPT_QUERIES_FILE) -> CalibrationInputs | None:
        """Read the file that `save` wrote; return None if the file does not exist."""
        path = directory / name
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as arrays:

            def half_rows(name: str) -> HalfRows:
                return HalfRows(arrays[name], arrays[f"{name}.scales"])

            are_views, unseen, seed = arrays["settings"].tolist()
            kinds = {}
            for kind in _KINDS:
                ids, labels, groups, *sources = unpacked_names(arrays[f"{kind}.names"])
                parts = [half_rows(f"{kind}.{part}") for part in _PARTS]
                known = None if sources[0] is None else tuple(sources[0])
                kinds[kind] = Kept(tuple(ids), tuple(labels), tuple(groups), known, *parts)
            return cls(
                **kinds,
                are_views=bool(are_views),
                unseen=bool(unseen),
                seed=seed,
                labels=tuple(unpacked_names(arrays["labels"])[0]) if "labels" in arrays else (),
                unlabelled=half_rows("unlabelled") if "unlabelled" in arrays else None,
                not_fitted=tuple(unpacked_names(arrays["not_fitted"])[0])
                if "not_fitted" in arrays
                else (),
            )


def _label_of(gallery: Gallery, item_id: str) -> str | None:
    """Return the label of an item; None if the item has no label or does not exist."""
    try:
        return gallery.item(item_id).label
    except ItemNotFound:
        return None


def _arrays(kept: CalibrationInputs) -> Iterator[tuple[str, NDArray[Any]]]:
    for kind in _KINDS:
        queries: Kept = getattr(kept, kind)
        names = [queries.ids, queries.labels, queries.groups, queries.sources]
        yield f"{kind}.names", packed_names(names)
        for part in _PARTS:
            rows: HalfRows = getattr(queries, part)
            yield f"{kind}.{part}", rows.values
            yield f"{kind}.{part}.scales", rows.scales
    if kept.unlabelled is not None:
        yield "unlabelled", kept.unlabelled.values
        yield "unlabelled.scales", kept.unlabelled.scales

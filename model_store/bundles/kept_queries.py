"""The queries of a calibration, stored as arrays in the bundle.

A stored query consists of an embedding, in half precision, and a label. Item features are in
`item_features`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import ItemNotFound
from model_store.gallery import Gallery
from model_store.table import HalfRows, Table

from .item_features import packed_names, unpacked_names

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
    """

    matched: Kept
    withheld: Kept
    are_views: bool
    unseen: bool
    seed: int
    labels: tuple[str, ...] = ()
    unlabelled: HalfRows | None = None

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

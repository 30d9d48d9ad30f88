"""The features of a random sample of a gallery's items, stored in its bundle.

A gallery itself stores no features. With the features of the sample, the outlier detector can be
fitted again without images. An item that was added to the live gallery can be a calibration query.
The results of this query then exclude the item itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.decision.outliers import averaged_features, averaging
from model_store.gallery import GallerySnapshot
from model_store.gallery.protocol import find_row
from model_store.table import SHARED, HalfRows, Table

ITEM_FEATURES_FILE = "item_features.npz"

MOST_ITEMS = 4_000
"""Approximate maximum number of items in the sample. With 1,280 features, a sample takes 10 MB."""


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

        A hash of an added item's id decides whether the item is sampled. So equal changes give
        equal samples. An item with a new label and the same embedding keeps its features.
        """
        put = set(snapshot.appended_ids()) - snapshot.edited_ids()
        rows = [
            row
            for row, item_id in enumerate(self.ids)
            if item_id not in put and find_row(snapshot, item_id) is not None
        ]
        kept = self.at(rows)
        drawn = [item_id for item_id in sorted(put) if _draw(item_id, "put") < self.share]
        found = snapshot.put_features(drawn)
        if found:
            whole = HalfRows.from_bytes(list(found.values())).whole()
            features = averaged_features(whole, averaging(whole.shape[1]))
            fresh = ItemFeatures(
                tuple(found),
                tuple(f"item {item_id}" for item_id in found),
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

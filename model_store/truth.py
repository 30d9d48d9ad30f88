"""Tests whether an item is a true match of a query.

A true match has the same label as the query, or a position near the query. If items have no labels,
only the item itself is a match. Calibration, evaluation and the published protocols use these
classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DatasetError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

_EQUATOR = 6_378_137.0
_FLATTENING = 1 / 298.257223563
"""Equatorial radius in metres and flattening of the WGS84 ellipsoid."""


LATITUDE, LONGITUDE = "latitude", "longitude"
"""Metadata fields with the position of an item: WGS84 coordinates in degrees."""


class LabelledItem(Protocol):
    """An item or a result."""

    @property
    def id(self) -> str:
        """The id of the item."""

    @property
    def label(self) -> str | None:
        """The label of the item."""


def label_or_id(item: LabelledItem) -> str:
    """Return the label of an item; an item without a label is the only item of its kind."""
    return item.id if item.label is None else item.label


class Truth(Protocol):
    """The true matches of B queries among N items."""

    def matches(self, queries: Integers, items: Integers) -> Bools:
        """Return whether the items (b, n) are true matches of the queries (b,), by index."""

    def counts(self) -> Integers:
        """Return the number (B,) of true matches of each query."""


@dataclass(frozen=True, slots=True)
class SameLabel:
    """A true match is an item with the query's label.

    Attributes
    ----------
    queries : (B,) label codes of the queries. If no item has the query's label, the query has a
        code that no item has.
    items : (N,) label codes of the items. Items without a label have −1, which no query has.
    """

    queries: NDArray[np.integer[Any]]
    items: NDArray[np.integer[Any]]

    def matches(self, queries: Integers, items: Integers) -> Bools:
        """Return whether items (b, n) have the label of queries (b,)."""
        same: Bools = self.items[items] == self.queries[queries, None]
        return same

    def counts(self) -> Integers:
        """Return the number (B,) of items of each query's label."""
        codes, sizes = np.unique(self.items, return_counts=True)
        places = np.minimum(codes.searchsorted(self.queries), len(codes) - 1)
        found: Integers = np.where(codes[places] == self.queries, sizes[places], 0)
        return found


@dataclass(frozen=True, slots=True)
class Within:
    """A true match is an item within a distance of the query's position.

    Attributes
    ----------
    queries : (B, d) positions of the queries in metres, see `wgs84`. An unknown position is NaN and
        never matches.
    items : (N, d) positions of the items, as for queries.
    metres : maximum distance of a match.
    """

    queries: Floats
    items: Floats
    metres: float

    def matches(self, queries: Integers, items: Integers) -> Bools:
        """Return whether items (b, n) are within the distance of queries (b,)."""
        apart = self.items[items] - self.queries[queries, None]
        near: Bools = np.square(apart).sum(-1) <= self.metres**2
        return near

    def counts(self) -> Integers:
        """Return the number (B,) of items within the distance of each query."""
        from scipy.spatial import KDTree  # noqa: PLC0415 - slow; few galleries have places

        found = np.zeros(len(self.queries), dtype=np.int64)
        known = np.isfinite(self.queries).all(axis=1)
        there = self.items[np.isfinite(self.items).all(axis=1)]
        if known.any() and len(there):
            found[known] = KDTree(there).query_ball_point(
                self.queries[known], self.metres, return_length=True
            )
        return found

    def nearest(self) -> Integers:
        """Return the nearest item (B,) of each query; −1 if no item is within the distance.

        If several items are equally near, one of them is returned.
        """
        from scipy.spatial import KDTree  # noqa: PLC0415 - slow; few galleries have places

        found = np.full(len(self.queries), -1, dtype=np.int64)
        known = np.flatnonzero(np.isfinite(self.queries).all(axis=1))
        there = np.flatnonzero(np.isfinite(self.items).all(axis=1))
        if len(known) and len(there):
            distances, places = KDTree(self.items[there]).query(self.queries[known])
            near = np.asarray(distances) <= self.metres
            found[known[near]] = there[np.asarray(places)[near]]
        return found


def wgs84(latitudes: Floats, longitudes: Floats) -> Floats:
    """Convert positions on the WGS84 ellipsoid to points (n, 3) in space, in metres.

    Distances between points are measured along straight lines. For two points one kilometre apart,
    the straight line is less than 2 µm shorter than the path on the surface.

    Parameters
    ----------
    latitudes, longitudes : (n,) in degrees; NaN if not known.
    """
    latitude, longitude = np.radians(latitudes), np.radians(longitudes)
    squared_eccentricity = _FLATTENING * (2 - _FLATTENING)
    normal = _EQUATOR / np.sqrt(1 - squared_eccentricity * np.sin(latitude) ** 2)
    return np.stack(
        [
            normal * np.cos(latitude) * np.cos(longitude),
            normal * np.cos(latitude) * np.sin(longitude),
            normal * (1 - squared_eccentricity) * np.sin(latitude),
        ],
        axis=-1,
    )


def place_in(metadata: Mapping[str, Any], origin: str) -> tuple[float, float] | None:
    """Return latitude and longitude in degrees from metadata; None if both are missing.

    Raises
    ------
    DatasetError : only one value is given, or a value is not a number of degrees in its range.
    """
    found = metadata.get(LATITUDE), metadata.get(LONGITUDE)
    if found == (None, None):
        return None
    for value, most in zip(found, (90, 180), strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
            raise DatasetError(
                f"{origin}: {LATITUDE} is {found[0]!r}, and {LONGITUDE} is {found[1]!r}. They must "
                "be numbers of degrees, −90 to 90 and −180 to 180."
            )
    return float(found[0]), float(found[1])  # type: ignore[arg-type] # looked at above


def positions_of(
    fields: Sequence[Mapping[str, Any]],
    origins: Sequence[str] | None = None,
    invalid: list[str] | None = None,
) -> Floats:
    """Return n positions (n, 3) in metres, see `wgs84`; NaN if not known.

    Parameters
    ----------
    fields : the metadata of n items or queries.
    origins : n origins of the metadata, for messages.
    invalid : receives a message for each invalid position, which is then not known. If None, an
        invalid position is an error.

    Raises
    ------
    DatasetError : a position is invalid, see `place_in`.
    """
    degrees = np.full((len(fields), 2), np.nan)
    for row, metadata in enumerate(fields):
        try:
            place = place_in(metadata, "" if origins is None else origins[row])
        except DatasetError as error:
            if invalid is None:
                raise
            invalid.append(str(error))
        else:
            if place is not None:
                degrees[row] = place
    return wgs84(*degrees.T)


def place_codes(positions: Floats, metres: float) -> NDArray[np.int32]:
    """Divide the results of a query into places; places take the role of labels.

    If matches are defined by distance, all results near the query are true matches. Probabilities
    must not be divided among them. So a result and all less similar results within ``metres`` of it
    are one place, unless they belong to the place of a more similar result.

    Parameters
    ----------
    positions : (n, d) positions of the results in metres, most similar first; NaN if not known.
    metres : maximum distance of a match.

    Returns
    -------
    (n,) codes. Results of one place have the same code. The codes are −2 or smaller, so they are
    not codes of labels. A result without a position has −1.
    """
    from scipy.spatial.distance import cdist  # noqa: PLC0415 - slow; few galleries have places

    near = cdist(positions, positions) <= metres  # NaN is near nothing
    free = near.diagonal().copy()
    codes = np.full(len(positions), -1, dtype=np.int32)
    for row in range(len(positions)):
        if free[row]:
            same = near[row] & free
            codes[same] = -2 - row
            free &= ~same
    return codes


def apart_from_places(positions: Floats, first: Integers, metres: float) -> Floats:
    """Return how far each result is from the first item of each place, in [0, 1].

    If the first item of a place is a true match, a result at distance d is probably one, too. The
    probability decreases from 1 at d = 0 to 0 at d = 2r, with r the maximum distance of a match:
    beyond 2r, no query is within r of both items. The match of a query belongs to the first place
    that matches. So the first items of more similar places are no matches.

    Parameters
    ----------
    positions : (n, d) positions of the results in metres, most similar first; NaN if not known.
    first : (g,) ascending indexes of the first item of each place, see `place_codes`.
    metres : maximum distance r of a match.

    Returns
    -------
    (g, n) values of d / 2r; 1 for larger distances, for the first items of more similar places, and
    for items without a position.
    """
    from scipy.spatial.distance import cdist  # noqa: PLC0415 - slow; few galleries have places

    apart: Floats = np.fmin(cdist(positions[first], positions) / (2 * metres), 1)
    apart[:, first] = np.where(np.tri(len(first), k=-1), 1, apart[:, first])
    return apart


def decreased(apart: Floats, exponents: Floats) -> Floats:
    """Return the probability that items are true matches if the first item of a place is one.

    The probability is (1 − x^a)^b, which is 1 at x = 0 and 0 at x = 1 (the survival function of
    Kumaraswamy 1980). If the encoder finds items that are very near the query, the probability
    decreases steeply at half of the range. If the query can be anywhere within the distance, the
    probability decreases evenly.

    Parameters
    ----------
    apart : values x in [0, 1], see `apart_from_places`.
    exponents : (2,) positive numbers a and b.
    """
    probabilities: Floats = (1 - apart ** exponents[0]) ** exponents[1]
    return probabilities

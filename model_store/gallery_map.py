"""A map of a gallery: its items in two dimensions, for a view of the whole gallery at once.

The axes are the first two principal components of the items' directions. They are computed from a
seeded sample, so the map of a gallery is the same on every replica. Two dimensions show only a part
of the distances: `Plane.shares` is the share of the variance along each axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from model_store.errors import InvalidRequest
from model_store.gallery import Gallery
from model_store.gallery.filters.facets import Facet
from model_store.gallery.filters.grammar import And, Condition, Filter, Scalar, parse_field

MAX_POINTS = 100_000
"""Maximum number of items on a map; of a larger gallery a seeded sample is shown."""

MAX_POINTS_ELSEWHERE = 5_000
"""The same for a gallery on another machine, whose vectors come over the network."""

N_SAMPLED = 10_000
"""Maximum number of items that the axes are computed from."""

MAX_SQUARE = 1_024
"""Maximum side of the matrix whose eigenvectors are computed; the time grows with its cube."""

LAST_STEP = 65_535
"""Largest coordinate; coordinates are uint16."""

MAX_COLOURS = 8
"""Maximum number of colours; people do not distinguish more."""

NO_COLOUR = 255
"""Colour code of an item that has none of the listed values."""

LABEL = "label"

_N_RANGES = 6
_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Plane:
    """The plane of a gallery's first two principal components.

    Attributes
    ----------
    axes : (2, D) orthonormal, see `principal_axes`; a row is 0 if the sample has no variance along
        it.
    shares : (2,) share of the sample's variance along each axis.
    origin : (2,) smallest coordinates of the gallery's items.
    extent : the larger of the two ranges of coordinates; 1 if all items are at one point.
    """

    axes: NDArray[np.float64]
    shares: NDArray[np.float64]
    origin: NDArray[np.float64]
    extent: float

    @classmethod
    def of(cls, gallery: Gallery, seed: int = 0) -> Plane:
        """Compute the plane of a gallery, and the range of its items."""
        generator = np.random.default_rng(seed)
        rows = gallery.rows()
        n_sampled = N_SAMPLED if gallery.dim <= MAX_SQUARE else MAX_SQUARE
        n_sampled = min(n_sampled, _max_points(gallery))
        sample = gallery.directions(_sampled(rows, n_sampled, generator))
        axes, shares = principal_axes(sample.astype(np.float64))
        shown = _sampled(rows, _max_points(gallery), generator)
        ends = [(part.min(axis=0), part.max(axis=0)) for part in _along(gallery, shown, axes)]
        if not ends:
            return cls(axes, shares, np.zeros(2), 1.0)
        least, greatest = np.min([end for end, _ in ends], 0), np.max([end for _, end in ends], 0)
        return cls(axes, shares, least, float((greatest - least).max()) or 1.0)

    def positions(self, gallery: Gallery, rows: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Coordinates (n, 2) of ``rows`` (n,), from 0 to `LAST_STEP`; both axes have one scale."""
        scaled = [(part - self.origin) / self.extent for part in _along(gallery, rows, self.axes)]
        steps = np.rint(np.clip(np.concatenate([np.empty((0, 2)), *scaled]), 0, 1) * LAST_STEP)
        positions: NDArray[np.uint16] = steps.astype(np.uint16)
        return positions


@dataclass(frozen=True, slots=True)
class ItemPoints:
    """The items on a map.

    Attributes
    ----------
    rows : (n,) ascending; a row stands for the same item as long as the bundle is served.
    positions : (n, 2), see `Plane.positions`.
    n_passing : number of items that pass the filter; more than n if a sample is shown.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.uint16]
    n_passing: int


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour of the map: a value, or a range of numbers without its end.

    Attributes
    ----------
    value : the value of the field; None for a range.
    least, greatest : the range; None for a value. The last range includes its end.
    n_items : number of items on the map with this colour.
    """

    value: Scalar
    least: float | None
    greatest: float | None
    n_items: int


def principal_axes(
    points: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first two principal axes (2, D), and their shares (2,) of the variance.

    The sign of an axis is arbitrary: the point farthest from the mean along it is on the positive
    side, so that the same points give the same axes on every machine.

    Parameters
    ----------
    points : (n, D). The smaller of n and D is the side of the matrix that is decomposed.
    """
    n, dim = points.shape
    axes, shares = np.zeros((2, dim)), np.zeros(2)
    if not n:
        return axes, shares
    apart = points - points.mean(axis=0)
    of_dimensions = dim <= n
    square = apart.T @ apart if of_dimensions else apart @ apart.T
    total = float(np.trace(square))
    if total <= n * dim * np.finfo(np.float64).eps:
        return axes, shares
    values, vectors = np.linalg.eigh(square)
    for place, column in enumerate(range(len(values) - 1, max(len(values) - 3, -1), -1)):
        share = max(float(values[column]), 0.0) / total
        axis = vectors[:, column] if of_dimensions else apart.T @ vectors[:, column]
        if share <= np.finfo(np.float64).eps * len(values):
            continue
        axis = axis / np.linalg.norm(axis)
        along = apart @ axis
        axes[place] = -axis if -along.min() > along.max() else axis
        shares[place] = share
    return axes, shares


def points_of(
    gallery: Gallery, plane: Plane, where: Filter | None = None, seed: int = 0
) -> ItemPoints:
    """Return the items that pass a filter, or a seeded sample of `MAX_POINTS` of them."""
    rows = gallery.rows()
    if where is not None:
        rows = rows[gallery.matching(where).at(rows)]
    shown = _sampled(rows, _max_points(gallery), np.random.default_rng(seed))
    return ItemPoints(shown, plane.positions(gallery, shown), len(rows))


def colours_of(
    gallery: Gallery, rows: NDArray[np.int64], field: str
) -> tuple[list[Colour], NDArray[np.uint8]]:
    """Return at most `MAX_COLOURS` colours, and the code (n,) of each of ``rows`` (n,).

    The most frequent values have colours. Numbers with more values than colours have ranges of
    equal width.

    Parameters
    ----------
    field : ``label``, or a field that `Gallery.facets` lists.

    Raises
    ------
    InvalidRequest : the gallery does not list the field.
    """
    if field == LABEL:
        return _by_label(gallery, rows)
    facets = {facet.field: facet for facet in gallery.facets(MAX_COLOURS) or ()}
    if field not in facets:
        raise InvalidRequest(
            f"The field {field!r} gives no colours: the gallery has no index of it. Use `label`, "
            "or a field that `GET …/facets` lists."
        )
    codes = np.full(len(rows), NO_COLOUR, dtype=np.uint8)
    colours = []
    for code, (value, least, greatest, condition) in enumerate(_conditions(facets[field])):
        is_of = gallery.matching(condition).at(rows) & (codes == NO_COLOUR)
        codes[is_of] = code
        colours.append(Colour(value, least, greatest, int(is_of.sum())))
    return colours, codes


def _by_label(gallery: Gallery, rows: NDArray[np.int64]) -> tuple[list[Colour], NDArray[np.uint8]]:
    of_rows = gallery.label_codes(rows)
    labels, counts = np.unique(of_rows[of_rows >= 0], return_counts=True)
    frequent = np.lexsort((labels, -counts))[:MAX_COLOURS]
    codes = np.full(len(rows), NO_COLOUR, dtype=np.uint8)
    colours = []
    for code, place in enumerate(frequent.tolist()):
        codes[of_rows == labels[place]] = code
        label = gallery.labels[int(labels[place])]
        colours.append(Colour(label, None, None, int(counts[place])))
    return colours, codes


def _conditions(facet: Facet) -> Iterator[tuple[Scalar, float | None, float | None, Filter]]:
    """Yield value, range and condition of each colour of a field."""
    field = parse_field(facet.field)
    least, greatest = facet.least, facet.greatest
    if least is None or greatest is None or least == greatest or facet.n_values <= MAX_COLOURS:
        for value, _ in facet.values:
            yield value, None, None, Condition(field, facet.comparison, (value,))
        return
    ends = np.linspace(least, greatest, _N_RANGES + 1).tolist()
    for place, (start, end) in enumerate(pairwise(ends)):
        until: Condition = Condition(field, "lte" if place == _N_RANGES - 1 else "lt", (end,))
        yield None, start, end, And((Condition(field, "gte", (start,)), until))


def _max_points(gallery: Gallery) -> int:
    return MAX_POINTS if gallery.is_local else MAX_POINTS_ELSEWHERE


def _sampled(rows: NDArray[np.int64], n: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return at most ``n`` of ``rows``, ascending."""
    if len(rows) <= n:
        return rows
    return np.sort(generator.choice(rows, n, replace=False))


def _along(
    gallery: Gallery, rows: NDArray[np.int64], axes: NDArray[np.float64]
) -> Iterator[NDArray[np.float64]]:
    """Yield the coordinates of ``rows`` along ``axes``, part by part, to bound the memory."""
    for start in range(0, len(rows), _AT_ONCE):
        directions = gallery.directions(rows[start : start + _AT_ONCE])
        yield (directions @ axes.T.astype(np.float32)).astype(np.float64)

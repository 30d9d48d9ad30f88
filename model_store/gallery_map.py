"""A map of a gallery: all its items as points in two dimensions.

The axes are the first two principal components of the items' directions. The axes are computed from
a seeded sample, so the map of a gallery is the same on every replica. Two dimensions do not show
all distances: `Plane.shares` is the share of the variance that each axis shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from model_store.errors import InvalidRequest
from model_store.gallery import Gallery
from model_store.gallery.filters.grammar import And, Condition, Filter, Scalar, parse_field
from model_store.records import Facet

MAX_POINTS = 100_000
"""Maximum number of items on a map. The map of a larger gallery shows a seeded sample."""

MAX_POINTS_ELSEWHERE = 5_000
"""Maximum number of items on the map of a gallery that is on another machine. The limit is low,
because the vectors of the items are sent over the network."""

N_SAMPLED = 10_000
"""Maximum number of items in the sample that determines the axes."""

MAX_SQUARE = 1_024
"""Maximum side of the matrix whose eigenvectors are computed. The computing time grows with the
cube of this side."""

LAST_STEP = 65_535
"""Largest coordinate; coordinates are uint16."""

MAX_COLOURS = 8
"""Maximum number of colours. People cannot reliably distinguish a larger number of colours."""

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
    axes : (2, D) orthonormal, see `principal_axes`. A row is 0 if the sample has no variance along
        its axis.
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
        """Compute the plane of a gallery, and the range of the items' coordinates."""
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
        """Coordinates (n, 2) of ``rows`` (n,), 0 to `LAST_STEP`; both axes have the same scale."""
        scaled = [(part - self.origin) / self.extent for part in _along(gallery, rows, self.axes)]
        steps = np.rint(np.clip(np.concatenate([np.empty((0, 2)), *scaled]), 0, 1) * LAST_STEP)
        positions: NDArray[np.uint16] = steps.astype(np.uint16)
        return positions


@dataclass(frozen=True, slots=True)
class ItemPoints:
    """The items on a map.

    Attributes
    ----------
    rows : (n,) ascending rows. While the bundle is served, a row always belongs to the same item.
    positions : (n, 2), see `Plane.positions`.
    n_passing : number of items that pass the filter. This number is larger than n if the map shows
        a sample.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.uint16]
    n_passing: int


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour of the map, for one value of a field or for a range of numbers.

    Attributes
    ----------
    value : the value of the field; None for a range.
    least : lower end of the range; None for a value.
    greatest : upper end of the range; None for a value. Only the last range includes its upper end.
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

    The sign of a principal axis is arbitrary. The function chooses the sign so that the point
    farthest from the mean along the axis is on the positive side. So the same points give the same
    axes on every machine.

    Parameters
    ----------
    points : (n, D). The axes are computed from a square matrix with min(n, D) rows.
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
    """Return the items that pass a filter, or a seeded sample of `MAX_POINTS` items."""
    rows = gallery.rows()
    if where is not None:
        rows = rows[gallery.matching(where).at(rows)]
    shown = _sampled(rows, _max_points(gallery), np.random.default_rng(seed))
    return ItemPoints(shown, plane.positions(gallery, shown), len(rows))


def colours_of(
    gallery: Gallery, rows: NDArray[np.int64], field: str
) -> tuple[list[Colour], NDArray[np.uint8]]:
    """Return at most `MAX_COLOURS` colours, and the colour code (n,) of each row in ``rows`` (n,).

    The most frequent values get colours. If a numeric field has more values than colours, the
    colours are for ranges of equal width.

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
    """Yield the value, the two ends of the range, and the filter for each colour of a field."""
    field = parse_field(facet.field)
    least, greatest = facet.least, facet.greatest
    if least is None or greatest is None or least == greatest or facet.n_values <= MAX_COLOURS:
        for one in facet.values:
            yield one.value, None, None, Condition(field, facet.comparison, (one.value,))
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
    """Yield the coordinates of ``rows`` along ``axes`` in parts, to limit the memory."""
    for start in range(0, len(rows), _AT_ONCE):
        directions = gallery.directions(rows[start : start + _AT_ONCE]).astype(np.float64)
        # Unlike `@`, `vecdot` gives an item the same result for any number of items.
        yield np.vecdot(directions[:, None], axes)

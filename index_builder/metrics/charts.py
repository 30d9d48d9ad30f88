"""Curves as the page draws them: paths and ticks in the units of an SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 340, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 40
"""Margins around the plot area of a chart, for ticks and titles."""

N_TICKS = 5

Point = Sequence[float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    place: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of one method.

    Attributes
    ----------
    method : its place among the methods.
    title : for a tool tip and for who cannot see.
    path : of an SVG.
    """

    method: int
    title: str
    path: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Axes:
    """The ranges that are drawn."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Across, SVG units."""
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)

    def y(self, value: float) -> float:
        """Down, SVG units; what lies outside is put on the edge."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(HEIGHT - BOTTOM - min(max(share, 0), 1) * (HEIGHT - TOP - BOTTOM), 2)

    @property
    def x_ticks(self) -> list[Tick]:
        """Marks along the bottom."""
        return [Tick(self.x(value), _short(value)) for value in ticks(self.x_low, self.x_high)]

    @property
    def y_ticks(self) -> list[Tick]:
        """Marks along the left."""
        return [Tick(self.y(value), _short(value)) for value in ticks(self.y_low, self.y_high)]

    def path(self, points: Iterable[Point]) -> str:
        """A line through points."""
        return "M" + "L".join(f"{self.x(x):g} {self.y(y):g}" for x, y in points)


UNIT = Axes(0, 1, 0, 1)


def fitted(curves: Sequence[Sequence[Point]], *, from_zero: bool = False) -> Axes:
    """Axes from 0 to 1 across, and down from and to round numbers around all curves."""
    values = [y for points in curves for _, y in points]
    low = 0.0 if from_zero else min(values, default=0.0)
    high = max(values, default=1.0)
    step = _step((high - low) or 0.1)
    bottom = max(0.0, math.floor(low / step + 1e-9) * step)
    return Axes(0, 1, bottom, max(math.ceil(high / step - 1e-9) * step, bottom + step))


def ticks(low: float, high: float) -> list[float]:
    """About `N_TICKS` round numbers from ``low`` to ``high``."""
    step = _step(high - low)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def bars(shares: Sequence[float], highest: float) -> list[Bar]:
    """A histogram over [0, 1]."""
    axes, width = Axes(0, 1, 0, highest), 1 / len(shares)
    return [
        Bar(
            axes.x(place * width),
            axes.y(share),
            round(axes.x((place + 1) * width) - axes.x(place * width), 2),
            round(axes.y(0) - axes.y(share), 2),
        )
        for place, share in enumerate(shares)
        if share > 0
    ]


def _step(span: float) -> float:
    """The round number that divides a span into about `N_TICKS`."""
    rough = span / N_TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    return size * min((1, 2, 2.5, 5, 10), key=lambda factor: abs(factor * size - rough))


def _short(value: float) -> str:
    return f"{value:.4g}"

"""Cheap checks before a search; they find pictures that may be poor queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from model_store.records import QualityHint

MEASURES = ("short_side", "brightness", "contrast", "sharpness", "aspect")
"""Names of the measures, in the order of the last axis of `quality_measures`."""

_MEASURED_SIDE = 256
"""Length of the longer side in pixels. Larger pictures are reduced to this length before the
measurement."""

_GREYS = np.arange(256.0)

_DEGRADED_FROM = 99.0
"""A picture counts as degraded if its displacement is at or above this percentile of ordinary
pictures. `ordinary_limits` uses the same share: 1 % of the pictures are beyond each limit."""

_DEGRADED = (
    "The picture looks degraded. Take another picture that is sharp and bright, and shows the "
    "whole object."
)

_FLAT = 1.0
"""The sharpness is measured only if the variance of the grey values is above this value."""


@dataclass(frozen=True, slots=True)
class _Reason:
    """A reason why a picture may be poor, based on one measure.

    Attributes
    ----------
    measure : one of `MEASURES`.
    limit : value of the measure beyond which the picture may be poor.
    below : whether values below the limit are poor.
    advice : one sentence.
    """

    measure: str
    limit: float
    below: bool
    advice: str

    def applies(self, value: float, ordinary: float | None) -> bool:
        """Return whether ``value`` is beyond the limit.

        If ``ordinary`` is not None, the value must also be beyond ``ordinary``.
        """
        limits = [self.limit] if ordinary is None else [self.limit, ordinary]
        return value < min(limits) if self.below else value > max(limits)


_REASONS: Mapping[str, _Reason] = {
    "too_small": _Reason("short_side", 64, True, "Send a larger picture, or move closer."),
    "too_dark": _Reason("brightness", 40, True, "Use more light."),
    "flat": _Reason("contrast", 12, True, "The picture has hardly any contrast; check the lens."),
    "blurred": _Reason("sharpness", 0.01, True, "Hold still, and let the camera focus."),
    "extreme_aspect": _Reason("aspect", 3, False, "Crop the picture to its important part."),
}


def quality_measures(
    pixels: NDArray[np.uint8], size: tuple[int, int] | None = None
) -> NDArray[np.float64]:
    """Return the measures of a picture (H, W, 3), uint8.

    Parameters
    ----------
    size : width and height of the picture in the file, if ``pixels`` were decoded at a reduced
        size.

    Returns
    -------
    (len(MEASURES),):

    - ``short_side``: the shorter side in pixels; ``aspect``: the longer side divided by the shorter
      side;
    - ``brightness`` and ``contrast``: mean and standard deviation of the grey values, 0 to 255;
    - ``sharpness``: mean square of the Laplacian (as in Pech-Pacheco et al. 2000), divided by the
      variance of the grey values, so that the value does not depend on contrast. Blur reduces the
      value.
    """
    width, height = size or (pixels.shape[1], pixels.shape[0])
    image = Image.fromarray(pixels).convert("L")
    image.thumbnail((_MEASURED_SIDE, _MEASURED_SIDE), Image.Resampling.BOX)
    shares = np.array(image.histogram()) / (image.width * image.height)
    brightness = shares @ _GREYS
    variance = float(shares @ (_GREYS - brightness) ** 2)
    sharpness = _mean_squared_laplacian(image) / variance if variance > _FLAT else 0.0
    short, long = min(height, width), max(height, width)
    return np.array([short, brightness, variance**0.5, sharpness, long / short])


def _mean_squared_laplacian(image: Image.Image) -> float:
    """Return the mean squared Laplacian of grey values, with repeated border pixels."""
    grey = np.asarray(image, dtype=np.int16)
    laplacian = -4 * grey
    laplacian[1:] += grey[:-1]
    laplacian[:-1] += grey[1:]
    laplacian[:, 1:] += grey[:, :-1]
    laplacian[:, :-1] += grey[:, 1:]
    laplacian[0] += grey[0]
    laplacian[-1] += grey[-1]
    laplacian[:, 0] += grey[:, 0]
    laplacian[:, -1] += grey[:, -1]
    values = laplacian.ravel().astype(np.float64)
    return float(values @ values) / values.size


def quality_hints(
    measures: NDArray[np.float64], ordinary: Mapping[str, float] | None = None
) -> list[QualityHint]:
    """Return the quality hints for a query with ``measures`` (len(MEASURES),).

    Parameters
    ----------
    ordinary : for each code, a limit; 1 % of the calibration queries are beyond it. With these
        limits, queries that are usual for a gallery get no hints, for example dark silhouettes or
        small icons.
    """
    from model_store.records import QualityHint  # noqa: PLC0415 - decoders need no pydantic

    value_of = dict(zip(MEASURES, measures.tolist(), strict=True))
    known = ordinary or {}
    return [
        QualityHint(
            code=code,
            measure=reason.measure,
            value=value_of[reason.measure],
            advice=reason.advice,
        )
        for code, reason in _REASONS.items()
        if reason.applies(value_of[reason.measure], known.get(code))
    ]


def degradation_hint(displacement: float | None, percentile: float | None) -> list[QualityHint]:
    """Return the hint that a picture looks degraded, if its displacement is large.

    Parameters
    ----------
    displacement, percentile : see `model_store.decision.outliers.DisplacementModel`; None if not
        known.
    """
    from model_store.records import QualityHint  # noqa: PLC0415 - decoders need no pydantic

    if displacement is None or percentile is None or percentile < _DEGRADED_FROM:
        return []
    return [QualityHint(code="degraded", measure="aleatoric", value=displacement, advice=_DEGRADED)]


def ordinary_limits(measures: NDArray[np.float64]) -> dict[str, float]:
    """Return a limit for each code; 1 % of the calibration queries are beyond this limit.

    Parameters
    ----------
    measures : (B, len(MEASURES)) measures of the calibration queries.
    """
    return {
        code: float(
            np.quantile(measures[:, MEASURES.index(reason.measure)], 0.01 if reason.below else 0.99)
        )
        for code, reason in _REASONS.items()
    }

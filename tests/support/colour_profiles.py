"""ICC profiles put together by hand: a matrix and a gamma, as cameras and telephones write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

D50 = (0.9642, 1.0, 0.8249)

# Columns: XYZ of red, green and blue, adapted to D50.
SRGB = np.array(
    [[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]]
)
DISPLAY_P3 = np.array(
    [[0.51512, 0.29198, 0.15710], [0.24120, 0.69225, 0.06657], [-0.00105, 0.04189, 0.78407]]
)
ADOBE_RGB = np.array(
    [[0.60974, 0.20528, 0.14919], [0.31111, 0.62567, 0.06322], [0.01947, 0.06087, 0.74457]]
)


def rgb_profile(matrix: NDArray[np.float64], curve: float | Sequence[float]) -> bytes:
    """A profile of RGB with these primaries and this gamma (or table of linear values, 0 to 1)."""
    tags = {b"wtpt": _xyz(D50)}
    for place, name in enumerate((b"r", b"g", b"b")):
        tags[name + b"XYZ"] = _xyz(matrix[:, place])
        tags[name + b"TRC"] = _curve(curve)
    return _profile(b"RGB ", tags)


def grey_profile(gamma: float) -> bytes:
    """A profile of greys."""
    return _profile(b"GRAY", {b"wtpt": _xyz(D50), b"kTRC": _curve(gamma)})


def srgb_curve(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear light of sRGB values, 0 to 1 (IEC 61966-2-1)."""
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def srgb_from_linear(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of `srgb_curve`, clipped to what can be shown."""
    clipped = values.clip(0, 1)
    return np.where(clipped <= 0.0031308, clipped * 12.92, 1.055 * clipped ** (1 / 2.4) - 0.055)


def _fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65_536))


def _xyz(values: Sequence[float] | NDArray[np.float64]) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(_fixed(float(value)) for value in values)


def _curve(curve: float | Sequence[float]) -> bytes:
    if isinstance(curve, float):
        return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(curve * 256)) + b"\0\0"
    values = [round(value * 65_535) for value in curve]
    return b"curv\0\0\0\0" + struct.pack(f">I{len(values)}H", len(values), *values)


def _profile(colour_space: bytes, tags: dict[bytes, bytes]) -> bytes:
    directory, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        directory += name + struct.pack(">II", start + len(body), len(content))
        body += content + b"\0" * (-len(content) % 4)
    header = struct.pack(
        ">I4sI4s4s4s", start + len(body), b"\0" * 4, 0x02400000, b"mntr", colour_space, b"XYZ "
    )
    header += b"\0" * 12 + b"acsp" + b"\0" * 28 + b"".join(map(_fixed, D50))
    return header.ljust(128, b"\0") + directory + body

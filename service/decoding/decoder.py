"""The `Decoder` protocol, its results, and a decoder that runs in threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.gallery import Thumbnail
from model_store.images import (
    ImageLimits,
    Preprocessing,
    decode_image,
    encode_preview,
    encode_thumbnail,
)
from model_store.images.quality import quality_measures
from service.scheduling import FairShare


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decoded image, ready for the encoder.

    Attributes
    ----------
    pixels : (H, W, 3) uint8 at the encoder's input size.
    format, width, height, warnings : as in `model_store.images.DecodedImage`.
    measures : `model_store.images.quality.quality_measures` of the picture in its own size, if
        requested.
    thumbnail : a small version of the image.
    preview : a larger version, JPEG; see `encode_preview`.
    """

    pixels: NDArray[np.uint8]
    format: str
    width: int
    height: int
    warnings: tuple[str, ...]
    measures: NDArray[np.float64] | None = None
    thumbnail: Thumbnail | None = None
    preview: bytes = b""


class Decoder(Protocol):
    """Decodes uploaded images to arrays that the encoder takes as input.

    Attributes
    ----------
    sandbox : parts of the sandbox in force.
    shares : scheduler of the decoder's processes; idle while no image is being decoded.
    """

    sandbox: tuple[str, ...]
    shares: tuple[FairShare, ...]

    async def decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        *,
        measured: bool = False,
        thumbnail: bool = False,
        preview_side: int | None = None,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size."""


class ThreadDecoder:
    """Decodes on threads of this process, for trusted images and tests."""

    sandbox: tuple[str, ...] = ()
    shares: tuple[FairShare, ...] = ()

    def __init__(self, executor: Executor, limits: ImageLimits) -> None:
        self._executor = executor
        self._limits = limits

    async def decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        *,
        measured: bool = False,
        thumbnail: bool = False,
        preview_side: int | None = None,
    ) -> Prepared:
        """Decode an image file and bring it to the encoder's input size.

        Raises
        ------
        ImageError : the image is empty, too large, damaged or in an unsupported format.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, self._decode, data, preprocessing, measured, thumbnail, preview_side
        )

    def _decode(
        self,
        data: bytes,
        preprocessing: Preprocessing,
        measured: bool,
        thumbnail: bool,
        preview_side: int | None,
    ) -> Prepared:
        def again(side: int) -> NDArray[np.uint8]:
            return decode_image(data, self._limits, side).pixels

        decoded = decode_image(data, self._limits, preprocessing.smallest_side)
        return Prepared(
            preprocessing(decoded.pixels),
            decoded.format,
            decoded.width,
            decoded.height,
            decoded.warnings,
            quality_measures(decoded.pixels, (decoded.width, decoded.height)) if measured else None,
            Thumbnail(*encode_thumbnail(decoded.pixels)) if thumbnail else None,
            encode_preview(decoded.pixels, preview_side, again),
        )

"""Writes the directory of an encoder: its ONNX file, and a card with its origin.

::

    <encoder>/
      encoder.onnx        see `model_store.encoder.onnx`
      text_encoder.onnx   the text tower, if any; see `model_store.encoder.text`
      tokenizer.json      the tokenizer of the text tower
      encoder.json        the card
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.foreign_encoders.card import replacing_encoder, write_card
from index_builder.foreign_encoders.choices import InputFormat, Precision
from index_builder.foreign_encoders.parity import (
    Parity,
    ParityImage,
    Reference,
    TextSource,
    WrittenText,
    labels_of,
    prepared,
    require_parity,
    write_text_encoder,
)
from index_builder.foreign_encoders.precision import (
    PrecisionCost,
    precision_cost,
    reduce_precision,
    require_recall,
)
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import EncoderSourceError


@dataclass(frozen=True)
class EncoderSource:
    """An encoder from a library, before it is written.

    Attributes
    ----------
    write : writes the ONNX file in float32, and compares the file with the network on images (n, H,
        W, 3).
    reference : the pipeline of the library, from an image to a vector.
    input_format : the preprocessing of images.
    origin : names and versions of model and library, for the card.
    text : the text tower, if requested.
    """

    write: Callable[[Path, NDArray[np.uint8]], None]
    reference: Reference
    input_format: InputFormat
    origin: Mapping[str, str]
    text: TextSource | None = None


@dataclass(frozen=True, slots=True)
class WrittenEncoder:
    """A written encoder, and how well it agrees with its source."""

    directory: Path
    dim: int
    input_format: InputFormat
    parity: Parity
    cost: PrecisionCost | None
    text: WrittenText | None = None

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Rows of a summary table."""
        size = self.input_format.preprocessing
        rows = [
            ("dimensions", f"{self.dim:,}"),
            ("input", f"{size.height} × {size.width}, {size.fit}, {size.resample}"),
            ("compared with its source on", f"{self.parity.n_images} images"),
            ("smallest cosine", f"{self.parity.smallest_cosine:.7f}"),
            ("of vectors less their mean", _shown(self.parity.smallest_centred_cosine)),
        ]
        if self.text is not None:
            rows += [
                ("tokens of a text", str(self.text.context_length)),
                ("compared with its source on", f"{self.text.parity.n_images} texts"),
                ("smallest cosine", f"{self.text.parity.smallest_cosine:.7f}"),
            ]
        if self.cost is not None:
            rows += [
                ("bytes", f"{self.cost.bytes:,}, of {self.cost.bytes_float32:,}"),
                ("smallest cosine with float32", f"{self.cost.smallest_cosine:.5f}"),
                (
                    "recall at 1",
                    f"{self.cost.recall_at_1:.4f}, of {self.cost.recall_at_1_float32:.4f}",
                ),
            ]
        return rows


def write_encoder(
    directory: Path,
    source: EncoderSource,
    images: list[ParityImage],
    precision: Precision = Precision.float32,
    recall_tolerance: float = 0.01,
) -> WrittenEncoder:
    """Export an encoder, compare it with its source on real images, and write its directory.

    Parameters
    ----------
    precision, recall_tolerance : see `index_builder.foreign_encoders.precision`.

    Raises
    ------
    ParityError : the encoder disagrees with its source, or the recall in the lower precision is too
        low. In this case, nothing is written.
    EncoderSourceError : the graph cannot be run.
    OutputError : the disk is full, or ``directory`` has other files.
    """
    with replacing_encoder(directory) as staging:
        exact, path = staging / "float32.onnx", staging / ENCODER_FILE
        pixels = prepared(images, source.input_format.preprocessing)
        source.write(exact, pixels)
        encoder = _opened(exact)
        parity = require_parity(encoder, source.reference, images, pixels)
        if precision is Precision.float32:
            exact.rename(path)
            cost = None
        else:
            # The loss is measured on images that the quantisation does not use.
            reduce_precision(exact, path, precision, pixels[::2])
            cost = precision_cost(exact, path, pixels[1::2], labels_of(images[1::2]))
            require_recall(cost, recall_tolerance)
            exact.unlink()
        text = None
        if source.text is not None:
            fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()
            text = write_text_encoder(staging, source.text, fingerprint, encoder.dim)
        write_card(
            staging,
            {
                "origin": dict(source.origin),
                "input": asdict(source.input_format),
                "dim": encoder.dim,
                "precision": precision.value,
                "parity": asdict(parity),
                "precision_cost": None if cost is None else asdict(cost),
                "text": None if text is None else asdict(text),
            },
        )
    return WrittenEncoder(directory, encoder.dim, source.input_format, parity, cost, text)


def _shown(cosine: float | None) -> str:
    return "all images have nearly the same vector" if cosine is None else f"{cosine:.7f}"


def _opened(path: Path) -> OnnxEncoder:
    try:
        return OnnxEncoder(path, "cpu")
    except Exception as error:  # ONNX Runtime's
        raise EncoderSourceError(f"ONNX Runtime cannot load the graph: {error}") from error

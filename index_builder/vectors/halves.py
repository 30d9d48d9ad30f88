"""A trunk that nothing trains, and what an encoder makes of its features: two graphs for one.

The trunk is known before there is an encoder, so what it makes of an image serves to learn the last
layer, to fit the posterior, to fill the gallery and to calibrate. It is computed by ONNX Runtime,
as the encoder is: in a third of torch's time, and with the same bits on any number of threads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from index_builder.vectors.images import CPU_BATCH, ImageVectors, libraries, versions
from index_builder.vectors.store import Vector, VectorFile
from model_store.encoder.contract import (
    OUTPUT_NAMES,
    Embeddings,
    EncoderInput,
    Inputs,
    input_fields,
    read_input,
)
from model_store.encoder.onnx import open_graph

TRUNK_KEY = "vouch.trunk"
"""Metadata of a trunk's file: the fingerprint of what it was made of, and what it takes."""

HEAD_KEY = "vouch.head"
"""Metadata of a head's file: the fingerprints of the encoder and the trunk that it belongs to."""

FEATURES = OUTPUT_NAMES[2]


def trunk_metadata(made_of: str, preprocessing: EncoderInput) -> str:
    """Return the metadata of a trunk's file."""
    made_of += " " + versions(("torch", "onnx", "onnxscript"))
    return json.dumps({"made_of": made_of, **input_fields(preprocessing)}, sort_keys=True)


def head_metadata(encoder_fingerprint: str, trunk: bytes) -> str:
    """Return the metadata of a head's file; ``trunk`` is the content of the other file."""
    of_trunk = hashlib.sha256(trunk).hexdigest()
    return json.dumps({"encoder": encoder_fingerprint, "trunk": of_trunk}, sort_keys=True)


class OnnxTrunk:
    """The trunk in an ONNX file, on the CPU."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self._session = open_graph(content, "cpu", threads=1)
        self.metadata = self._session.get_modelmeta().custom_metadata_map.get(TRUNK_KEY, "")

    @property
    def preprocessing(self) -> EncoderInput:
        """The preprocessing from an upright RGB image to the trunk's input; or the vectors."""
        return read_input(json.loads(self.metadata))

    def features(self, images: Inputs) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""
        given = {self._session.get_inputs()[0].name: images}
        found: Vector = self._session.run([FEATURES], given)[0]
        return found

    def vectors(self, known: VectorFile | None) -> ImageVectors:
        """Features of images, which ``known`` keeps."""
        maker = f"trunk {self.fingerprint} {CPU_BATCH} {libraries()}"
        return ImageVectors(self.features, maker, self.preprocessing, CPU_BATCH, known)


class Trunk(Protocol):
    """Images to features."""

    def vectors(self, known: VectorFile | None) -> ImageVectors:
        """Features of images, which ``known`` keeps."""


class Head(Protocol):
    """Features to embeddings."""

    def embeddings(self, features: Vector) -> Embeddings:
        """Embeddings of images with these ``features`` (B, F)."""


@dataclass(frozen=True, slots=True)
class Halves:
    """The trunk of an encoder and the rest of it."""

    trunk: Trunk
    head: Head

    @classmethod
    def of(cls, trunk: Path, head: Path, encoder_fingerprint: str) -> Halves | None:
        """Open both files; return None where they are missing, or of another encoder."""
        if not (trunk.exists() and head.exists()):
            return None
        opened = OnnxHead(head)
        wanted = head_metadata(encoder_fingerprint, trunk.read_bytes())
        return cls(OnnxTrunk(trunk), opened) if opened.metadata == wanted else None


class OnnxHead:
    """Features to embeddings, in an ONNX file, on the CPU."""

    def __init__(self, path: Path) -> None:
        self._session = open_graph(path.read_bytes(), "cpu", threads=1)
        self.metadata = self._session.get_modelmeta().custom_metadata_map.get(HEAD_KEY, "")

    def embeddings(self, features: Vector) -> Embeddings:
        """Embeddings of images with these ``features`` (B, F)."""
        mean, variance = self._session.run(list(OUTPUT_NAMES[:2]), {FEATURES: features})
        return Embeddings(mean, variance, features)

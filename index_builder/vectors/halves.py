"""An encoder as two graphs: a trunk that is not trained, and a head.

The trunk maps images to features, and the head maps features to embeddings. In a build, the trunk
exists before the head. The features of an image are therefore computed once for the last layer, the
posterior, the gallery and the calibration. ONNX Runtime computes the features. ONNX Runtime takes a
third of torch's time, and the results are bit-identical for any number of threads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from index_builder.vectors.images import CPU_BATCH, ImageVectors, libraries, versions
from index_builder.vectors.opened import opened_once
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
"""Metadata key of a trunk file. The value contains the trunk's input and the fingerprint of the
trunk's source."""

HEAD_KEY = "vouch.head"
"""Metadata key of a head file. The value contains the fingerprints of the encoder and of the
trunk."""

FEATURES = OUTPUT_NAMES[2]


def trunk_metadata(made_of: str, preprocessing: EncoderInput) -> str:
    """Return the metadata of a trunk file; ``made_of`` is the fingerprint of the trunk."""
    made_of += " " + versions(("torch", "onnx", "onnxscript"))
    return json.dumps({"made_of": made_of, **input_fields(preprocessing)}, sort_keys=True)


def head_metadata(encoder_fingerprint: str, trunk: bytes) -> str:
    """Return the metadata of a head file; ``trunk`` is the content of the trunk file."""
    of_trunk = hashlib.sha256(trunk).hexdigest()
    return json.dumps({"encoder": encoder_fingerprint, "trunk": of_trunk}, sort_keys=True)


class OnnxTrunk:
    """A trunk in an ONNX file, which computes features on the CPU."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self._session = open_graph(content, "cpu", threads=1)
        self.metadata = self._session.get_modelmeta().custom_metadata_map.get(TRUNK_KEY, "")

    @property
    def preprocessing(self) -> EncoderInput:
        """The preprocessing of an upright RGB image, or the shape of the input vectors."""
        return read_input(json.loads(self.metadata))

    def features(self, images: Inputs) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""
        given = {self._session.get_inputs()[0].name: images}
        found: Vector = self._session.run([FEATURES], given)[0]
        return found

    def vectors(self, known: VectorFile | None) -> ImageVectors:
        """Return the features of images as `ImageVectors`, with the cache ``known``."""
        maker = f"trunk {self.fingerprint} {CPU_BATCH} {libraries()}"
        return ImageVectors(self.features, maker, self.preprocessing, CPU_BATCH, known)


class TrunkHalf(Protocol):
    """Images to features."""

    def vectors(self, known: VectorFile | None) -> ImageVectors:
        """Return the features of images as `ImageVectors`, with the cache ``known``."""


class HeadHalf(Protocol):
    """Features to embeddings."""

    def embeddings(self, features: Vector) -> Embeddings:
        """Return the embeddings of images from their ``features`` (B, F)."""


@dataclass(frozen=True, slots=True)
class Halves:
    """The trunk and the head of an encoder."""

    trunk: TrunkHalf
    head: HeadHalf

    @classmethod
    def of(cls, trunk: Path, head: Path, encoder_fingerprint: str) -> Halves | None:
        """Open both files; return None if a file is missing or belongs to another encoder."""
        if not (trunk.exists() and head.exists()):
            return None
        opened = opened_once(OnnxHead, head)
        wanted = head_metadata(encoder_fingerprint, trunk.read_bytes())
        return cls(opened_once(OnnxTrunk, trunk), opened) if opened.metadata == wanted else None


class OnnxHead:
    """A head in an ONNX file, which computes embeddings from features on the CPU."""

    def __init__(self, path: Path) -> None:
        self._session = open_graph(path.read_bytes(), "cpu", threads=1)
        self.metadata = self._session.get_modelmeta().custom_metadata_map.get(HEAD_KEY, "")

    def embeddings(self, features: Vector) -> Embeddings:
        """Return the embeddings of images from their ``features`` (B, F)."""
        mean, variance = self._session.run(list(OUTPUT_NAMES[:2]), {FEATURES: features})
        return Embeddings(mean, variance, features)

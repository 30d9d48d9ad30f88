"""An encoder in a build: with a cache of its vectors, and as two graphs.

The trunk, which is not trained, maps images to features, and the head maps features to embeddings.
In a build, the trunk exists before the head. The features of an image are therefore computed once
for the last layer, the posterior, the gallery and the calibration. ONNX Runtime computes the
features. ONNX Runtime takes a third of torch's time, and the results are bit-identical for any
number of threads.

`index_builder.indexing` embeds collections of any size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from index_builder.arrays import FeatureBlocks
from index_builder.datasets import LabelledImages
from index_builder.vectors.encoder_file import opened_once
from index_builder.vectors.images import (
    CPU_BATCH,
    ImageVectors,
    Seen,
    Vector,
    VectorFile,
    libraries,
    versions,
)
from index_builder.vectors.table import VectorTable
from model_store.encoder.contract import (
    OUTPUT_NAMES,
    Embeddings,
    Encoder,
    EncoderInput,
    EncoderMetadata,
    ForwardingEncoder,
    Inputs,
    input_fields,
    read_input,
)
from model_store.encoder.onnx import open_graph
from model_store.errors import DatasetError
from model_store.machine import PROVIDERS

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


_CACHED_BYTES = 2**32
"""Maximum size in bytes of the features that are kept in memory for one data set (4 GiB)."""


class LinearEncoder(Protocol):
    """A trunk and a linear last layer h = W φ + b, as arrays of NumPy.

    Attributes
    ----------
    weight, bias : (D, F), (D,) float32.
    """

    @property
    def weight(self) -> NDArray[np.float32]:
        """Weight W."""

    @property
    def bias(self) -> NDArray[np.float32]:
        """Bias b."""

    def blocks(self, images: LabelledImages) -> Iterator[NDArray[np.float32]]:
        """Yield the features (n, F) of ``images`` in order."""


def features_of(encoder: LinearEncoder, images: LabelledImages) -> NDArray[np.float32]:
    """Return the features (N, F) of ``images``."""
    found = np.empty((len(images), encoder.weight.shape[1]), dtype=np.float32)
    start = 0
    for block in encoder.blocks(images):
        found[start : start + len(block)] = block
        start += len(block)
    return found


def repeatable_blocks(encoder: LinearEncoder, images: LabelledImages) -> FeatureBlocks:
    """Return a function; each call starts a pass over the features.

    If all features need at most `_CACHED_BYTES`, they are kept in memory. Otherwise each pass
    computes the features again.
    """
    if len(images) * encoder.weight.shape[1] * 4 <= _CACHED_BYTES:
        kept = list(encoder.blocks(images))
        return lambda: kept
    return lambda: encoder.blocks(images)


GPU_BATCH = 64


def batch_size(encoder: Encoder) -> int:
    """Return the batch size; `recipe` contains this size, because it can change the rounding."""
    return CPU_BATCH if encoder.provider == PROVIDERS["cpu"] else GPU_BATCH


def recipe(encoder: Encoder) -> str:
    """Return a text that identifies how images are embedded.

    Shards with a different text are stale.
    """
    return f"1 {encoder.fingerprint} {encoder.provider} {batch_size(encoder)}"


class StoredEncoder(ForwardingEncoder):
    """An encoder with a cache: an image in the cache is not decoded or encoded again.

    Cached embeddings are bit-identical to computed embeddings.

    Parameters
    ----------
    encoder : an encoder that uses one thread, see `open_encoder`.
    known : the cache of vectors; None for no cache.
    halves : trunk and head of the encoder. If given, the cache holds features of the trunk instead
        of embeddings.
    """

    def __init__(
        self, encoder: Encoder, known: VectorFile | None = None, halves: Halves | None = None
    ) -> None:
        super().__init__(encoder)
        self._halves = halves
        if halves is None:
            self._vectors = ImageVectors(
                self._whole,
                f"{recipe(encoder)} {libraries()}",
                encoder.metadata.input,
                batch_size(encoder),
                known,
            )
        else:
            self._vectors = halves.trunk.vectors(known)

    def encode_known(
        self, images: NDArray[np.uint8], contents: Sequence[bytes] | None
    ) -> Embeddings:
        """Embed ``images`` (B, H, W, 3) uint8; ``contents`` has the cache key of each image."""
        return self._embeddings(self._vectors.of_prepared(images, contents))

    def cached(self, contents: Sequence[bytes] | None) -> Embeddings | None:
        """Return the embeddings of all images with ``contents``; None if one is not cached."""
        vectors = self._vectors.cached(contents)
        return None if vectors is None else self._embeddings(vectors)

    def embedded(
        self, images: LabelledImages, description: str, seen: Seen | None
    ) -> Iterator[tuple[NDArray[np.int64], Embeddings]]:
        """Yield the positions and the embeddings of ``images`` in order, in batches."""
        for positions, vectors in self._vectors.of(images, description, seen):
            yield positions, self._embeddings(vectors)

    def close(self) -> None:
        """Close the encoder and the cache file."""
        self.real.close()
        if self._vectors.known is not None:
            self._vectors.known.close()

    def _whole(self, images: NDArray[np.uint8]) -> Vector:
        found = self.real.encode(images)
        return np.hstack([found.mean, found.variance, found.features])

    def _embeddings(self, vectors: Vector) -> Embeddings:
        if self._halves is not None:
            return self._halves.head.embeddings(vectors)
        mean, variance, features = np.split(vectors, [self.dim, 2 * self.dim], axis=1)
        return Embeddings(*map(np.ascontiguousarray, (mean, variance, features)))


def stored(encoder: Encoder) -> StoredEncoder:
    """Return ``encoder`` as a `StoredEncoder`.

    If ``encoder`` is not a `StoredEncoder`, the result is a new `StoredEncoder` without a cache.
    """
    return encoder if isinstance(encoder, StoredEncoder) else StoredEncoder(encoder)


def embedded(
    encoder: Encoder, images: LabelledImages, description: str, seen: Seen | None = None
) -> Iterator[tuple[NDArray[np.int64], Embeddings]]:
    """Yield the positions and the embeddings of ``images`` in order, in batches.

    Parameters
    ----------
    encoder : if it is a `StoredEncoder`, only images that are not in its cache are encoded.
    seen : function that is called for each decoded image.
    """
    return stored(encoder).embedded(images, description, seen)


def embed_all(encoder: Encoder, images: LabelledImages, description: str) -> Embeddings:
    """Return embeddings of all ``images``, without features, because features need much memory."""
    mean = np.empty((len(images), encoder.dim), dtype=np.float32)
    variance = np.empty_like(mean)
    for positions, found in embedded(encoder, images, description):
        mean[positions], variance[positions] = found.mean, found.variance
    return Embeddings(mean, variance, np.empty((len(images), 0), dtype=np.float32))


def embed_with_features(
    encoder: Encoder, images: LabelledImages, description: str, seen: Seen | None = None
) -> Embeddings:
    """Return embeddings and features of all ``images``; all results are kept in memory."""
    return Embeddings.concatenate(
        [found for _, found in embedded(encoder, images, description, seen)]
    )


class PassedVectors:
    """An encoder that takes rows of ``table`` as input, instead of images.

    Parameters
    ----------
    encoder : the encoder that computed the vectors.
    table : the vectors, with a variance if the encoder has a posterior.

    Raises
    ------
    DatasetError : the vectors do not fit the encoder.
    """

    def __init__(self, encoder: Encoder, table: VectorTable) -> None:
        vectors = table.described("the gallery's encoder")
        n_features = vectors.n_features or vectors.dim
        posterior = encoder.metadata.posterior
        if (vectors.dim, n_features) != (encoder.dim, encoder.n_features):
            raise DatasetError(
                f"{table.path.name} has means of {vectors.dim} numbers and features of "
                f"{n_features}; the gallery's encoder makes {encoder.dim} and "
                f"{encoder.n_features}. Give vectors of the gallery's encoder."
            )
        if posterior != "deterministic" and not vectors.with_variance:
            raise DatasetError(
                f"{table.path.name} has no variance, and the gallery's encoder has a posterior "
                f"({posterior}). Add the variance to the file."
            )
        self.fingerprint = encoder.fingerprint
        self.provider, self.placement = encoder.provider, None
        self.dim, self.n_features = encoder.dim, encoder.n_features
        self.metadata = EncoderMetadata(vectors, posterior)
        self._stops = np.cumsum(vectors.sizes)[:2]

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:  # noqa: ARG002
        """Embed rows (B, n) of the table."""
        mean, variance, features = np.split(images, self._stops, axis=1)
        if not variance.shape[1]:
            variance = np.zeros_like(mean)
        return Embeddings(
            np.ascontiguousarray(mean),
            np.ascontiguousarray(variance),
            np.ascontiguousarray(features if features.shape[1] else mean),
        )

    def close(self) -> None:
        """There is nothing to close."""

"""The encoder's protocol, input, metadata and embeddings, without ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from model_store.errors import ImagesNotTaken, NoEmbedding
from model_store.images import Preprocessing
from model_store.sphere import spherical_variance, unit_direction
from model_store.table import Table

if TYPE_CHECKING:
    from model_store.encoder.runs import Placement  # which needs ONNX Runtime


Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorInput:
    """The input row of an image: mean, optional variance and optional features.

    Attributes
    ----------
    made_by : name of the encoder that makes the vectors.
    dim : number D of dimensions of the mean.
    with_variance : whether a variance with D numbers follows the mean. If no variance follows, the
        variance is zero.
    n_features : number F of features at the end of the row; None if the mean also serves as the
        features.
    """

    made_by: str
    dim: int
    with_variance: bool = False
    n_features: int | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The lengths of mean, variance and features in a row."""
        return self.dim, self.dim * self.with_variance, self.n_features or 0

    @property
    def shape(self) -> tuple[int]:
        """The shape of the encoder's input for one image."""
        return (sum(self.sizes),)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """The data type of the encoder's input."""
        return np.dtype(np.float32)

    @property
    def n_bytes(self) -> int:
        """Bytes of a row."""
        return 4 * sum(self.sizes)

    @property
    def smallest_side(self) -> None:
        """None: vectors need no decoding."""

    def __call__(self, row: Vectors) -> Vectors:
        """Return a row unchanged, because it needs no preparation."""
        return row


INPUT_NAME, VECTORS_NAME = "images", "vectors"
OUTPUT_NAMES = ("embedding_mean", "embedding_variance", "features")

METADATA_KEY = "vouch.encoder"
TEXT_INPUT_NAMES = ("token_ids", "attention_mask")
TEXT_METADATA_KEY = "vouch.text_encoder"
TEXT_ENCODER_FILE = "text_encoder.onnx"
TOKENIZER_FILE = "tokenizer.json"

QueryKind = Literal["image", "text"]
Cleaning = Literal["none", "whitespace", "lower", "canonicalize"]
"""Cleaning of a text before tokenization. All methods except `none` repair wrongly decoded
characters (ftfy), decode HTML entities and collapse white space. `lower` also converts to lower
case, and `canonicalize` also removes punctuation."""

EncoderInput = Preprocessing | VectorInput
"""The input of an encoder: the preprocessing of an upright RGB image, or a description of
vectors."""

Inputs = NDArray[Any]
"""Images (B, H, W, 3) uint8, or vectors (B, n) float32 for an encoder with vectors as input."""


@dataclass(frozen=True, slots=True)
class EncoderMetadata:
    """The metadata in an encoder's ONNX file.

    Attributes
    ----------
    input : preprocessing of an upright RGB image, or a description of the input vectors.
    posterior : name of the posterior that gives the variance, for example
        ``laplace_fixed_euclidean``.
    pair_correlation : coefficients of `model_store.predictive.Correlation`; None if unknown.
    """

    input: EncoderInput
    posterior: str
    pair_correlation: tuple[float, ...] | None = None

    @property
    def takes_images(self) -> bool:
        """True if the input is images; False if the input is vectors from an external encoder."""
        return isinstance(self.input, Preprocessing)

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of an upright RGB image.

        Raises
        ------
        ImagesNotTaken : the encoder's input is vectors.
        """
        if isinstance(self.input, VectorInput):
            raise ImagesNotTaken(
                f"The gallery was made of vectors of {self.input.made_by!r}, so it cannot embed "
                "images. To search, embed the image with that encoder, and send the vector to "
                "…/search/vector. To add items, run `vouch-build index` with all vectors."
            )
        return self.input

    @property
    def input_name(self) -> str:
        """The name of the graph's input."""
        return INPUT_NAME if self.takes_images else VECTORS_NAME

    def fields(self) -> dict[str, Any]:
        """The metadata as values for JSON."""
        fields = {**input_fields(self.input), "posterior": self.posterior}
        if self.pair_correlation is not None:
            fields["pair_correlation"] = list(self.pair_correlation)
        return fields

    def to_json(self) -> str:
        """Serialise for the ONNX file's metadata."""
        return json.dumps(self.fields(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> EncoderMetadata:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        known = fields.get("pair_correlation")
        return cls(read_input(fields), fields["posterior"], None if known is None else tuple(known))


def input_fields(expected: EncoderInput) -> dict[str, Any]:
    """Return an encoder's input as values for JSON."""
    kind = "preprocessing" if isinstance(expected, Preprocessing) else "vectors"
    return {kind: asdict(expected)}


def read_input(fields: Mapping[str, Any]) -> EncoderInput:
    """Read an encoder's input from the result of `input_fields`; other fields are ignored."""
    if "vectors" in fields:
        return VectorInput(**fields["vectors"])
    return Preprocessing(**fields["preprocessing"])


def usable_vectors(mean: NDArray[np.float32], variance: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return a mask (...): True where mean and variance (..., D) are finite and the mean is not 0.

    Such a mean has a direction.
    """
    finite = np.isfinite(mean).all(-1) & np.isfinite(variance).all(-1)
    usable: NDArray[np.bool_] = finite & (mean != 0).any(-1)
    return usable


@dataclass(frozen=True)
class Embeddings(Table):
    """The encoder's outputs for B images.

    Attributes
    ----------
    mean : (B, D) float32, before normalisation.
    variance : (B, D) float32, ≥ 0, in squared units of ``mean``.
    features : (B, F) float32, penultimate activations.
    """

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    features: NDArray[np.float32]

    def require_usable(self) -> None:
        """Raise `NoEmbedding` unless all embeddings are usable, see `usable_vectors`."""
        if not usable_vectors(self.mean, self.variance).all():
            raise NoEmbedding(
                "For this input, the encoder gives numbers that are not finite, or only zeros. So "
                "it cannot be compared with other images. Send another image or text."
            )

    @cached_property
    def directions(self) -> NDArray[np.float32]:
        """The means (B, D), scaled to length 1; raises `ValueError` if a mean has length zero."""
        return unit_direction(self.mean)

    @cached_property
    def spherical_variances(self) -> NDArray[np.float64]:
        """The uncertainty (B,) of each embedding, see `model_store.sphere.spherical_variance`."""
        return spherical_variance(self.mean, self.variance)


class Encoder(Protocol):
    """Converts pixels to embeddings. The embedding of an image does not depend on its batch."""

    @property
    def fingerprint(self) -> str:
        """Hash of this encoder; galleries, calibrations and caches store it."""

    @property
    def metadata(self) -> EncoderMetadata:
        """Input and posterior."""

    @property
    def provider(self) -> str:
        """The execution provider that runs the encoder."""

    @property
    def placement(self) -> Placement | None:
        """The part of the graph that each execution provider ran; None if only the CPU is used."""

    @property
    def dim(self) -> int:
        """D, the size of the embedding."""

    @property
    def n_features(self) -> int:
        """F, the size of the penultimate layer."""

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images`` (B, H, W, 3) uint8 in batches of ``at_once``; if None, in one batch."""

    def close(self) -> None:
        """Release processes and memory; the encoder cannot be used afterwards."""


@dataclass(frozen=True, slots=True)
class TextMetadata:
    """The metadata in a text encoder's ONNX file.

    Attributes
    ----------
    image_encoder : fingerprint of the image encoder that has the same embedding space.
    tokenizer : SHA-256 of the tokenizer's file.
    cleaning : cleaning of a text before tokenization.
    posterior : see `EncoderMetadata.posterior`; ``deterministic`` without a variance.
    """

    image_encoder: str
    tokenizer: str
    cleaning: Cleaning
    posterior: str = "deterministic"

    def to_json(self) -> str:
        """Serialise for the ONNX file's metadata."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TextMetadata:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Tokens:
    """B tokenized texts.

    Attributes
    ----------
    ids : (B, L) int64, padded or cut to the context length L.
    mask : (B, L) int64, 1 for a token, 0 for padding.
    truncated : (B,) whether the end of a text was cut off.
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)


class TextEncoder(Protocol):
    """Embeds texts in the embedding space of an image encoder."""

    @property
    def fingerprint(self) -> str:
        """Hash of this encoder; calibrations and caches store it."""

    @property
    def metadata(self) -> TextMetadata:
        """The metadata: image encoder, tokenizer and cleaning."""

    @property
    def context_length(self) -> int:
        """L, the maximum number of tokens of a text."""

    @property
    def dim(self) -> int:
        """D, the size of the embedding."""

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Clean, tokenize, cut and pad B texts.

        Raises
        ------
        TextUnavailable : a library for texts is not installed.
        """

    def encode(self, tokens: Tokens) -> Embeddings:
        """Embed B texts. The mean replaces the features if the encoder gives no features."""


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """The properties of an `Encoder`, as values that can be sent to another process."""

    fingerprint: str
    metadata: EncoderMetadata
    provider: str
    placement: Placement | None
    dim: int
    n_features: int

    @classmethod
    def of(cls, encoder: Encoder) -> Self:
        """Read the properties of an encoder."""
        return cls(
            encoder.fingerprint,
            encoder.metadata,
            encoder.provider,
            encoder.placement,
            encoder.dim,
            encoder.n_features,
        )


class EncoderProxy:
    """Base class with the properties of another encoder.

    Attributes
    ----------
    facts : the other encoder, or its properties.
    """

    facts: Encoder | EncoderFacts

    @property
    def fingerprint(self) -> str:
        """See `Encoder.fingerprint`."""
        return self.facts.fingerprint

    @property
    def metadata(self) -> EncoderMetadata:
        """See `Encoder.metadata`."""
        return self.facts.metadata

    @property
    def provider(self) -> str:
        """See `Encoder.provider`."""
        return self.facts.provider

    @property
    def placement(self) -> Placement | None:
        """See `Encoder.placement`."""
        return self.facts.placement

    @property
    def dim(self) -> int:
        """See `Encoder.dim`."""
        return self.facts.dim

    @property
    def n_features(self) -> int:
        """See `Encoder.n_features`."""
        return self.facts.n_features


class ForwardingEncoder(EncoderProxy):
    """An `Encoder` that forwards all calls to another encoder; subclasses override some calls.

    Attributes
    ----------
    real : the other encoder.
    """

    def __init__(self, real: Encoder) -> None:
        self.facts = self.real = real

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images``; see `Encoder.encode`."""
        return self.real.encode(images, at_once)

    def close(self) -> None:
        """Close the other encoder."""
        self.real.close()

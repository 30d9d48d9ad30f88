"""An encoder that forwards to another encoder, in this or another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from model_store.encoder.contract import Embeddings, Encoder, EncoderMetadata, Inputs
from model_store.encoder.placement import Placement


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

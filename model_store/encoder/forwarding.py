"""An encoder in front of another."""

from __future__ import annotations

from model_store.encoder.contract import Embeddings, Encoder, EncoderMetadata, Inputs
from model_store.encoder.placement import Placement


class ForwardingEncoder:
    """An `Encoder` that hands everything on to another; subclasses do something of it themselves.

    Attributes
    ----------
    real : the other.
    """

    def __init__(self, real: Encoder) -> None:
        self.real = real

    @property
    def fingerprint(self) -> str:
        """See `Encoder.fingerprint`."""
        return self.real.fingerprint

    @property
    def metadata(self) -> EncoderMetadata:
        """See `Encoder.metadata`."""
        return self.real.metadata

    @property
    def provider(self) -> str:
        """See `Encoder.provider`."""
        return self.real.provider

    @property
    def placement(self) -> Placement | None:
        """See `Encoder.placement`."""
        return self.real.placement

    @property
    def dim(self) -> int:
        """See `Encoder.dim`."""
        return self.real.dim

    @property
    def n_features(self) -> int:
        """See `Encoder.n_features`."""
        return self.real.n_features

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:
        """Embed ``images``; see `Encoder.encode`."""
        return self.real.encode(images, at_once)

    def close(self) -> None:
        """Close the other."""
        self.real.close()

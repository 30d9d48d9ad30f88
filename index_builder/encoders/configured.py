"""Finds the encoder file of a configuration."""

from __future__ import annotations

from pathlib import Path

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.defaults import WHITENED_DIM
from index_builder.encoders.resolve import resolve_encoder


def with_encoder(config: BuildConfig) -> BuildConfig:
    """Return the build with the path of its encoder file; exports the encoder if needed.

    Raises
    ------
    VouchError : the encoder does not exist; see `resolve_encoder`.
    """
    spec = config.network.encoder
    if spec is None:
        return config
    place = resolve_encoder(spec).absolute()
    network = config.network.model_copy(update={"encoder": str(place)})
    return with_dimensions(config.model_copy(update={"network": network}))


def as_named(build: BuildConfig, config: BuildConfig) -> BuildConfig:
    """Return ``build``, but replace the encoder's path with the encoder's name from ``config``."""
    named = {"encoder": config.network.encoder}
    return build.model_copy(update={"network": build.network.model_copy(update=named)})


def with_dimensions(config: BuildConfig) -> BuildConfig:
    """Return the build with its embedding dimension, if the encoder file exists."""
    network = config.network
    if network.embedding_dim is not None or not Path(str(network.encoder)).exists():
        return config
    from index_builder.vectors.encoder_file import find_encoder  # noqa: PLC0415 - slow
    from index_builder.vectors.opened import encoder_on_cpu  # noqa: PLC0415

    encoder = encoder_on_cpu(find_encoder(Path(str(network.encoder))))
    counted = {"embedding_dim": min(WHITENED_DIM, encoder.n_features)}
    return config.model_copy(update={"network": network.model_copy(update=counted)})

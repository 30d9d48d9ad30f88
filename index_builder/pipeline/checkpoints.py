"""Reads the results of the build steps `train` and `fit`."""

from __future__ import annotations

from safetensors.torch import load_file

from index_builder.configuration.encoder import EncoderConfig
from index_builder.methods import Trained, method_of
from index_builder.networks import load_encoder
from index_builder.networks.features import LinearNetwork
from index_builder.pipeline.run import POSTERIOR_REPORT, Run
from index_builder.posteriors.encoders import ProbabilisticEncoder
from index_builder.posteriors.stored import load_posterior


def members_of(config: EncoderConfig, run: Run) -> list[tuple[EncoderConfig, Run]]:
    """Return the configuration and the run of each encoder that a build trains.

    A single encoder uses the run directory of the build. Each member of an ensemble has its own run
    directory, in a sub-folder.
    """
    configs = method_of(config).members(config)
    if len(configs) == 1:
        return [(configs[0], run)]
    return [(member, run.member(number)) for number, member in enumerate(configs)]


def trained_members(config: EncoderConfig, run: Run) -> list[Trained]:
    """Read the encoders from the step `train`.

    Raises
    ------
    StepNotReady : the encoders are not trained.
    ConfigError : the encoders were trained with another configuration.
    """
    run.require_trained(config)
    trained = []
    for member, place in members_of(config, run):
        checkpoint = place.require(place.checkpoint, "train")
        learned = load_file(place.require(place.objective, "train"))
        encoder = load_encoder(member.network, checkpoint)
        trained.append(Trained(encoder, learned, LinearNetwork(encoder)))
    return trained


def load_fitted(config: EncoderConfig, run: Run) -> ProbabilisticEncoder:
    """Read the encoder with its posterior from the step `fit`.

    Raises
    ------
    StepNotReady : the posterior is not fitted.
    ConfigError : the encoder was trained with another configuration.
    """
    encoders = [member.encoder for member in trained_members(config, run)]
    run.require(run.directory / POSTERIOR_REPORT, "fit")
    posterior = load_posterior(run.require(run.posterior, "fit"))
    return method_of(config).assemble(encoders, posterior)

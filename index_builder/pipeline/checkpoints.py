"""Reads the results of the build steps `train` and `fit`."""

from __future__ import annotations

from safetensors.torch import load_file

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import POST_HOC
from index_builder.methods import Trained, method_of
from index_builder.networks import load_encoder
from index_builder.pipeline.run import POSTERIOR_REPORT, Run
from index_builder.posteriors import ProbabilisticEncoder, load_posterior
from model_store.errors import ConfigError

TRAINING_REPORT = "training.json"


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
    run.require(run.directory / TRAINING_REPORT, "train")
    _require_unchanged(config, run)
    trained = []
    for member, place in members_of(config, run):
        checkpoint = place.require(place.checkpoint, "train")
        learned = load_file(place.require(place.objective, "train"))
        trained.append(Trained(load_encoder(member.network, checkpoint), learned))
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


def _require_unchanged(config: EncoderConfig, run: Run) -> None:
    then = run.read_json(TRAINING_REPORT)["config"]
    parts = ["dataset", "network", "training", "seed"]
    if not {then["posterior"]["method"], config.posterior.method} <= POST_HOC:
        parts.append("posterior")
    differing = config.changed_since(then)
    changed = [part for part in parts if part in differing]
    if changed:
        raise ConfigError(
            f"{run.directory} was trained with other values of `{'`, `'.join(changed)}` than the "
            "configuration. Run `vouch-build train` again, or set another --run directory."
        )

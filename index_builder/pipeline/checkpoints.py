"""Reading the checkpoints of the steps `train` and `fit`: encoders, with or without posterior."""

from __future__ import annotations

import numpy as np

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.posterior import CONTRASTIVE, DeterministicConfig, EnsembleConfig
from index_builder.networks import MetricEncoder, load_encoder
from index_builder.pipeline.run import Run
from index_builder.posteriors import DropoutPosterior, load_ensemble, load_posterior
from index_builder.posteriors.encoders import DropoutEncoder, EnsembleEncoder, ProbabilisticEncoder
from model_store.errors import ConfigError

TRAINING_REPORT = "training.json"


def load_fitted(config: BuildConfig, run: Run) -> ProbabilisticEncoder | EnsembleEncoder:
    """The encoder with its posterior, as `fit` left it: images to mean, variance and features.

    Raises
    ------
    StepNotReady : it is not fitted.
    ConfigError : it was trained with another configuration.
    """
    if isinstance(config.posterior, EnsembleConfig):
        members = trained_members(config, run)
        return EnsembleEncoder(members, load_ensemble(run.require(run.posterior, "fit")))
    encoder = trained_encoder(config, run)
    posterior = load_posterior(run.require(run.posterior, "fit"))
    if isinstance(posterior, DropoutPosterior) and len(posterior.masks):
        return DropoutEncoder(encoder, posterior)
    return ProbabilisticEncoder(encoder, posterior)


def trained_encoder(config: BuildConfig, run: Run) -> MetricEncoder:
    """The encoder that `train` left, in evaluation mode.

    Raises
    ------
    StepNotReady : it is not trained.
    ConfigError : it was trained with another configuration.
    """
    checkpoint = run.require(run.checkpoint, "train")
    _require_unchanged(config, run)
    return load_encoder(config.network, checkpoint)


def trained_members(config: BuildConfig, run: Run) -> list[MetricEncoder]:
    """The encoders of an ensemble, likewise."""
    run.require(run.directory / TRAINING_REPORT, "train")
    _require_unchanged(config, run)
    return [
        trained_encoder(member, run.member(number))
        for number, member in enumerate(member_configs(config))
    ]


def member_configs(config: BuildConfig) -> list[BuildConfig]:
    """Return the configuration of each member of an ensemble: an encoder with a seed of its own.

    The first member's is that of the build, so that it is the deterministic baseline; the others'
    come from that seed and the member's number, so that builds of different seeds share none. The
    data are divided by the build's own seed, for all members.
    """
    asked = config.posterior
    assert isinstance(asked, EnsembleConfig)  # noqa: S101 - the caller has looked
    others = np.random.SeedSequence(config.seed).generate_state(asked.n_members - 1)
    alone = DeterministicConfig(method="deterministic")
    return [
        config.model_copy(update={"seed": seed, "posterior": alone})
        for seed in (config.seed, *map(int, others))
    ]


def _require_unchanged(config: BuildConfig, run: Run) -> None:
    then = run.read_json(TRAINING_REPORT)["config"]
    parts = ["dataset", "network", "training", "seed"]
    if not {then["posterior"]["method"], config.posterior.method} <= CONTRASTIVE:
        parts.append("posterior")
    differing = config.changed_since(then)
    changed = [part for part in parts if part in differing]
    if changed:
        raise ConfigError(
            f"{run.directory} was trained with another `{'`, `'.join(changed)}` than the "
            "configuration has now. Run `vouch-build train` again, or name another --run."
        )

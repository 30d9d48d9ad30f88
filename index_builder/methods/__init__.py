"""Methods: each trains an encoder and gives its embeddings an uncertainty.

::

    method               the interface
    laplace              a Laplace posterior, fitted after or during training
    learned_variances    a network that predicts variances: Bayesian triplet, PFE, HIB
    temperatures         embedding norm, loss prediction; choice of a temperature
    baselines            no posterior, Monte Carlo dropout, a deep ensemble

The mathematics is in `index_builder.posteriors` and `index_builder.objectives`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from index_builder.configuration.encoder import EncoderConfig
from index_builder.methods.baselines import Deterministic, Ensemble, MonteCarloDropout
from index_builder.methods.laplace import OnlineLaplace, PostHocLaplace
from index_builder.methods.learned_variances import BayesianTriplet, FaceEmbeddings, HedgedInstance
from index_builder.methods.method import Method, Trained
from index_builder.methods.temperatures import EmbeddingNorm, LossPredictor

__all__ = ["METHODS", "Method", "Trained", "method_of"]

METHODS: Mapping[str, Callable[[Any], Method]] = {
    "laplace": PostHocLaplace,
    "online_laplace": OnlineLaplace,
    "bayesian_triplet": BayesianTriplet,
    "deterministic": Deterministic,
    "mc_dropout": MonteCarloDropout,
    "ensemble": Ensemble,
    "embedding_norm": EmbeddingNorm,
    "loss_prediction": LossPredictor,
    "pfe": FaceEmbeddings,
    "hib": HedgedInstance,
}
"""Constructors by name. The argument is the configuration table of the method, see
`index_builder.configuration.posterior`."""


def method_of(config: EncoderConfig) -> Method:
    """Return the method that ``config.posterior`` names."""
    return METHODS[config.posterior.method](config.posterior)

"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from index_builder.configuration.encoder import EncoderConfig
from index_builder.methods.bayesian_triplet import BayesianTriplet
from index_builder.methods.deterministic import Deterministic
from index_builder.methods.dropout import MonteCarloDropout
from index_builder.methods.embedding_norm import EmbeddingNorm
from index_builder.methods.ensemble import Ensemble
from index_builder.methods.face_embeddings import FaceEmbeddings
from index_builder.methods.hedged_instance import HedgedInstance
from index_builder.methods.laplace import OnlineLaplace, PostHocLaplace
from index_builder.methods.loss_prediction import LossPredictor
from index_builder.methods.method import Method

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

"""Methods: each trains an encoder and gives its embeddings an uncertainty.

::

    method               the interface
    laplace              a Laplace posterior, fitted after or during training
    learned_variances    a network that predicts variances: Bayesian triplet, PFE, HIB; loss
                         prediction, embedding norm
    validation           choice of a temperature by votes on validation images
    baselines            no posterior, Monte Carlo dropout, a deep ensemble

The mathematics is in `index_builder.posteriors` and `index_builder.objectives`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from index_builder.configuration.encoder import EncoderConfig
from index_builder.methods.method import Method, Trained

__all__ = ["METHODS", "Method", "Trained", "class_of", "method_of"]

METHODS: Mapping[str, str] = {
    "laplace": "laplace",
    "online_laplace": "laplace",
    "bayesian_triplet": "learned_variances",
    "pfe": "learned_variances",
    "hib": "learned_variances",
    "deterministic": "baselines",
    "mc_dropout": "baselines",
    "ensemble": "baselines",
    "embedding_norm": "learned_variances",
    "loss_prediction": "learned_variances",
}
"""Module by the name of a method. A module is imported when it is used, because most modules need
torch. Its ``CLASSES`` are the classes by name. The argument of a class is the configuration table
of the method, see `index_builder.configuration.posterior`."""


def method_of(config: EncoderConfig) -> Method:
    """Return the method that ``config.posterior`` names."""
    method: Method = class_of(config.posterior.method)(config.posterior)
    return method


def class_of(name: str) -> type[Any]:
    """Return the class of the method ``name``; see `METHODS`."""
    found: type[Any] = import_module(f"{__name__}.{METHODS[name]}").CLASSES[name]
    return found

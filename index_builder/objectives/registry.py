"""Objectives by their name in `training.objective`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from index_builder.configuration.encoder import TrainingConfig
from index_builder.objectives.distances import (
    TRIPLET_MARGIN,
    ContrastiveLoss,
    MarginLoss,
    triplet_loss,
)
from index_builder.objectives.objective import LossOfEmbeddings, Objective
from index_builder.objectives.proxies import (
    CenterLoss,
    CrossEntropyLoss,
    ExpectedLikelihoodLoss,
    NonIsotropicProxyLoss,
    ProxyAnchorLoss,
    ProxyNcaLoss,
    RegularisedProxyAnchorLoss,
    SphereProxyLoss,
    simplified_pairwise_cross_entropy,
)
from index_builder.objectives.similarities import (
    SOFTMAXES,
    MonteCarloInfoNceLoss,
    fast_ap,
    multi_similarity,
    n_pairs_loss,
    simclr,
    similarity_loss,
    smooth_ap,
)


@dataclass(frozen=True, slots=True)
class ObjectiveInputs:
    """Values that an objective needs but that are not in its configuration table.

    Attributes
    ----------
    embedding_dim : D.
    n_labels : K, number of labels of the training images.
    margin : `training.margin`.
    generator : draws the initial parameters and, during training, the random samples.
    """

    embedding_dim: int
    n_labels: int
    margin: float
    generator: torch.Generator


Maker = Callable[[Any, ObjectiveInputs], Objective]
"""Function that constructs an objective from the objective's configuration table and the task."""


def _settings(c: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the keys of a configuration table that the objective takes itself."""
    found: dict[str, Any] = c.model_dump(exclude={"kind", "learning_rate"})
    return found


def _of_embeddings(loss: Callable[..., torch.Tensor], *keys: str) -> Maker:
    """Return a constructor that passes ``keys`` of the configuration table to ``loss``."""
    return lambda c, _: LossOfEmbeddings(partial(loss, **{key: getattr(c, key) for key in keys}))


def _similarities(kind: str) -> Maker:
    return lambda c, _: LossOfEmbeddings(
        partial(similarity_loss, softmax=SOFTMAXES[kind], temperature=c.temperature)
    )


def _triplet(c: Any, _: ObjectiveInputs) -> Objective:  # noqa: ANN401
    return LossOfEmbeddings(
        partial(
            triplet_loss,
            distance=c.distance,
            soft=c.form == "soft",
            mining=c.mining,
            margin=TRIPLET_MARGIN if c.margin is None else c.margin,
        )
    )


def _learning(objective: Callable[..., Objective]) -> Maker:
    """Return a constructor that calls ``objective`` with D, K, the settings and a generator."""
    return lambda c, task: objective(
        task.embedding_dim, task.n_labels, **_settings(c), generator=task.generator
    )


OBJECTIVES: Mapping[str, Maker] = {
    "contrastive": lambda c, task: ContrastiveLoss(task.margin, c.form),
    "triplet": _triplet,
    "margin": lambda c, task: MarginLoss(**_settings(c), generator=task.generator),
    "n_pairs": _of_embeddings(n_pairs_loss, "norm_weight"),
    **{kind: _similarities(kind) for kind in SOFTMAXES},
    "multi_similarity": lambda c, _: LossOfEmbeddings(multi_similarity(c.alpha, c.beta, c.base)),
    "fast_ap": lambda c, _: LossOfEmbeddings(fast_ap(c.n_bins)),
    "smooth_ap": _of_embeddings(smooth_ap, "temperature"),
    "cross_entropy": _learning(CrossEntropyLoss),
    "center": _learning(CenterLoss),
    "spce": _of_embeddings(simplified_pairwise_cross_entropy),
    "proxy_nca": _learning(ProxyNcaLoss),
    "proxy_anchor": _learning(ProxyAnchorLoss),
    "el_vmf": _learning(partial(SphereProxyLoss, overlap="el_vmf")),
    "b_vmf": _learning(partial(SphereProxyLoss, overlap="b_vmf")),
    "kl_vmf": _learning(partial(SphereProxyLoss, overlap="kl_vmf")),
    "nivmf": _learning(NonIsotropicProxyLoss),
    "el_nivmf": _learning(ExpectedLikelihoodLoss),
    "panc_el_nivmf": _learning(RegularisedProxyAnchorLoss),
    "simclr": lambda c, _: simclr(c.temperature),
    "mc_info_nce": lambda c, task: MonteCarloInfoNceLoss(**_settings(c), generator=task.generator),
}
"""Constructors by `kind`. `index_builder.configuration` defines the configuration tables."""


def objective_of(
    config: TrainingConfig, embedding_dim: int, n_labels: int, generator: torch.Generator
) -> Objective:
    """Return the objective that ``config`` names, untrained.

    Parameters
    ----------
    config : the table `[training]`.
    embedding_dim : D.
    n_labels : number of labels of the training images.
    generator : draws the initial parameters and, during training, the random samples.
    """
    task = ObjectiveInputs(embedding_dim, n_labels, config.margin, generator)
    objective = OBJECTIVES[config.objective.kind](config.objective, task)
    objective.learning_rate = getattr(config.objective, "learning_rate", None)
    return objective

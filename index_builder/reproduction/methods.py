"""The methods of the papers by name. A method is a set of changes to a configuration.

All methods of a comparison start from the same configuration of data and network. `configured`
applies the changes of a method in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.objective import ContrastiveConfig
from index_builder.configuration.posterior import OF_ANY_OBJECTIVE, LaplaceConfig
from index_builder.configuration.problems import Problems
from model_store.errors import ConfigError

Config = TypeVar("Config", bound=EncoderConfig)


@dataclass(frozen=True, slots=True)
class PaperMethod:
    """A method: the changes that it makes to a configuration.

    Attributes
    ----------
    title : title of the method in tables.
    posterior : the new table `[posterior]`.
    network : new values for keys of the table `[network]`.
    small_cnn : further new values for `[network]`, if the trunk is `small_cnn`.
    post_hoc : whether the method uses the trained encoder of ``deterministic`` and needs no
        training.
    """

    title: str
    posterior: Mapping[str, Any]
    network: Mapping[str, Any] = field(default_factory=dict)
    small_cnn: Mapping[str, Any] = field(default_factory=dict)
    post_hoc: bool = False


def _laplace(approximation: str, split: str) -> dict[str, PaperMethod]:
    """Return post-hoc and online Laplace with the same diagonal curvature, as in the papers."""
    suffix = "" if split == "euclidean" else f"_{split}"
    curvature = {"structure": "diagonal", "approximation": approximation, "split": split}
    return {
        f"lam_posthoc_{approximation}{suffix}": PaperMethod(
            f"Laplace, {approximation}, {split}",
            {"method": "laplace", **curvature},
            post_hoc=True,
        ),
        f"lam_online_{approximation}{suffix}": PaperMethod(
            f"online Laplace, {approximation}, {split}", {"method": "online_laplace", **curvature}
        ),
    }


def _kronecker(method: str, title: str, *, post_hoc: bool) -> dict[str, PaperMethod]:
    """Return Kronecker-factored Laplace, whose prior is relative to the curvature."""
    ways = ("fixed", "positives") if post_hoc else ("fixed",)
    return {
        f"kron_{'posthoc' if post_hoc else 'online'}_{approximation}": PaperMethod(
            f"{title}, Kronecker-factored, {approximation}, euclidean",
            {
                "method": method,
                "structure": "kronecker",
                "approximation": approximation,
                "prior_precision": None,
                "prior_chosen_by": "curvature",
                "prior_scale": "features",
            },
            post_hoc=post_hoc,
        )
        for approximation in ways
    }


def _bayesian_triplet(title: str, **fields: str | bool) -> PaperMethod:
    return PaperMethod(f"Bayesian triplet, {title}", {"method": "bayesian_triplet", **fields})


def _choices(key: str) -> tuple[str, ...]:
    """Return the allowed values of a configuration key of the Laplace posterior."""
    return get_args(LaplaceConfig.model_fields[key].annotation)


METHODS: Mapping[str, PaperMethod] = {
    "deterministic": PaperMethod("deterministic", {"method": "deterministic"}, post_hoc=True),
    # Dropout of 0.2 between all trained layers, but not in a pretrained trunk (LAM, G.4).
    "mc_dropout": PaperMethod(
        "MC dropout",
        {"method": "mc_dropout"},
        network={"dropout": 0.2},
        small_cnn={"dropout_inside": True},
    ),
    "ensemble": PaperMethod("deep ensemble", {"method": "ensemble"}),
    "embedding_norm": PaperMethod(
        "embedding length as concentration", {"method": "embedding_norm"}, post_hoc=True
    ),
    "loss_ranking": PaperMethod(
        "pretrained visual uncertainties, losses ranked",
        {"method": "loss_prediction"},
        post_hoc=True,
    ),
    "loss_squared": PaperMethod(
        "loss prediction", {"method": "loss_prediction", "form": "squared"}, post_hoc=True
    ),
    "pfe": PaperMethod("probabilistic face embeddings", {"method": "pfe"}, post_hoc=True),
    "hib": PaperMethod("hedged instance embeddings", {"method": "hib"}),
    **{
        name: method
        for split in _choices("split")
        for approximation in _choices("approximation")
        for name, method in _laplace(approximation, split).items()
    },
    "lam_online_sampled": PaperMethod(
        "online Laplace, two sampled layers in each step",
        {"method": "online_laplace", "structure": "diagonal", "n_samples": 2},
    ),
    **_kronecker("laplace", "Laplace", post_hoc=True),
    **_kronecker("online_laplace", "online Laplace", post_hoc=False),
    "btl": _bayesian_triplet("diagonal"),
    "btl_isotropic": _bayesian_triplet("isotropic", variance="isotropic"),
    "btl_not_normalised": _bayesian_triplet("diagonal, not normalised", normalised=False),
    "btl_vmf": _bayesian_triplet(
        "von Mises-Fisher prior", variance="isotropic", prior="von_mises_fisher"
    ),
}
"""Methods by name; the command line uses these names."""


def configured(base: Config, name: str, checkpoint: Path | None = None) -> Config:
    """Return the configuration of a method.

    Parameters
    ----------
    base : the configuration to change. Its posterior is replaced. If both the method and ``base``
        use a Laplace posterior, the options for prior and temperature are kept. The objective is
        kept if the method accepts any objective; otherwise, the contrastive loss replaces the
        objective.
    name : a name in `METHODS`.
    checkpoint : checkpoint of a ``deterministic`` encoder. Post-hoc methods use this checkpoint;
        other methods train an encoder.

    Raises
    ------
    ConfigError : the method does not exist, or cannot be combined with ``base``.
    """
    if name not in METHODS:
        raise ConfigError(f"No method {name!r}. There are: {', '.join(METHODS)}.")
    method = METHODS[name]
    fields = base.model_dump()
    fields["posterior"] = {**_carried_over(base, method), **method.posterior}
    if method.posterior["method"] not in OF_ANY_OBJECTIVE:
        fields["training"]["objective"] = ContrastiveConfig().model_dump()
    fields["network"] |= method.network
    if base.network.trunk == "small_cnn":
        fields["network"] |= method.small_cnn
    if method.post_hoc and checkpoint is not None:
        fields["network"] |= {"weights": str(checkpoint), "last_layer": "loaded"}
        fields["training"]["epochs"] = 0
    try:
        return type(base).model_validate(fields)
    except ValidationError as error:
        raise ConfigError(
            f"{name}: {Problems(type(base), fields, error).of_options({})}"
        ) from error


def _carried_over(base: EncoderConfig, method: PaperMethod) -> dict[str, Any]:
    """Return the prior and temperature of ``base`` if both ``base`` and ``method`` use Laplace."""
    if base.posterior.method != "laplace" or "laplace" not in method.posterior["method"]:
        return {}
    shared = {"prior_precision", "prior_chosen_by", "prior_scale", "temperature"}
    return base.posterior.model_dump(include=shared)

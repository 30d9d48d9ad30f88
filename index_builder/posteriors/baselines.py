"""Posteriors of the baselines: a point, the norm, Monte Carlo dropout, and a deep ensemble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save_file
from scipy.linalg import orthogonal_procrustes
from torch import Tensor, nn

from model_store.sphere.normaliser import CORRECTIONS, LOWEST_ORDER

POINT_FORMAT = "point-posterior/1"


class _OfTensors:
    """A posterior whose fields are tensors."""

    __slots__ = ()
    FORMAT: ClassVar[str]

    def save(self, path: Path) -> None:
        """Write the tensors as safetensors."""
        tensors = {one.name: getattr(self, one.name).contiguous() for one in fields(self)}  # type: ignore[arg-type] # a dataclass
        save_file(tensors, path, metadata={"format": self.FORMAT})


@dataclass(frozen=True, slots=True)
class PointPosterior(_OfTensors):
    """A last layer h = W φ + b whose embedding has variance zero.

    Attributes
    ----------
    weight : (D, F)
    bias : (D,)
    """

    FORMAT = POINT_FORMAT
    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, last_layer: nn.Linear) -> PointPosterior:
        """Create the posterior of a trained layer."""
        return cls(last_layer.weight.detach(), last_layer.bias.detach())

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""
        mean = torch.addmm(self.bias, features, self.weight.T)
        return mean, torch.zeros_like(mean)


DROPOUT_FORMAT = "dropout-posterior/1"

_SHORTEST = 1e-12
"""Minimum norm of an embedding; it prevents division by zero."""


@dataclass(frozen=True, slots=True)
class DropoutPosterior(_OfTensors):
    """Monte Carlo dropout (Gal 2016); the dropout of the last layer is averaged in closed form.

    Each pass drops a share p of the features and scales up the rest. Over infinitely many passes,
    the embedding has exactly the mean h = W φ + b and the covariance C = p / (1 − p) W diag(φ∘φ)
    Wᵀ. Warburg et al. 2023 normalise the embedding in each pass, which removes the part of C along
    h. The variance is therefore the diagonal of the covariance of the direction u = h / ‖h‖. To
    first order in C, this covariance is P C P / ‖h‖² with P = I − u uᵀ.

    Dropout inside the trunk needs several passes, each with one of the `masks`. The masks are
    fixed, so that an image always gets the same embedding. The law of total variance combines the
    passes: the variance of the passes' directions plus the mean of the passes' variances.

    Attributes
    ----------
    weight : (D, F)
    bias : (D,)
    share : (), p in [0, 1), the dropped share of the features.
    masks : (T, ...) bool, for activations in the trunk; T = 0 if the trunk has no dropout.
    """

    FORMAT = DROPOUT_FORMAT
    weight: Tensor
    bias: Tensor
    share: Tensor
    masks: Tensor

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and variance of the embedding, (B, D) each, for one pass.

        The mean has unit length. ``features`` (B, F) come from this pass.
        """
        embedding = torch.addmm(self.bias, features, self.weight.T)
        length = embedding.norm(dim=1, keepdim=True).clamp_min(_SHORTEST)
        unit = embedding / length
        spread = self.share / (1 - self.share) * (features / length).square()
        along = unit @ self.weight
        variance = (
            spread @ self.weight.square().T
            - 2 * unit * ((spread * along) @ self.weight.T)
            + unit.square() * (spread * along.square()).sum(1, keepdim=True)
        )
        return unit, variance.clamp_min(0)

    def combine(self, passes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, from the features (B, F) of T passes."""
        moments = [self.predict(features) for features in passes]
        means = torch.stack([mean for mean, _ in moments])
        mean = means.mean(0)
        within = torch.stack([variance for _, variance in moments]).mean(0)
        return mean, (means - mean).square().mean(0) + within


ENSEMBLE_FORMAT = "ensemble-posterior/1"


@dataclass(frozen=True, slots=True)
class EnsemblePosterior(_OfTensors):
    """Last layers of M members, rotated so that their embeddings can be compared.

    An image has M unit embeddings, one from each member. The posterior's mean and variance are the
    mean and variance of these M embeddings, so 1 − ‖mean‖ is the spherical variance of the
    embeddings. This is the mixture of Lakshminarayanan et al. 2017 with members of variance zero.

    Attributes
    ----------
    weight : (M, D, F)
    bias : (M, D)
    """

    FORMAT = ENSEMBLE_FORMAT
    weight: Tensor
    bias: Tensor

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each.

        Parameters
        ----------
        features : (B, M·F), the concatenated features of the M members.
        """
        own = features.chunk(len(self.weight), dim=1)
        directions = torch.stack(
            [
                nn.functional.normalize(torch.addmm(bias, phi, weight.T))
                for phi, weight, bias in zip(own, self.weight, self.bias, strict=True)
            ]
        )
        mean = directions.mean(0)
        return mean, (directions - mean).square().mean(0)


@dataclass(frozen=True, slots=True)
class EnsembleFit:
    """An aligned ensemble and the agreement of its members.

    Attributes
    ----------
    posterior
    agreement : for each member, the mean cosine between the member's embeddings and the first
        member's embeddings of the training images. The first value is measured before the rotation,
        and the second value after the rotation.
    """

    posterior: EnsemblePosterior
    agreement: tuple[tuple[float, float], ...]


def fit_ensemble(layers: Sequence[nn.Linear], features: Sequence[Tensor]) -> EnsembleFit:
    """Rotate each member's embeddings onto the first member's embeddings; return the last layers.

    A metric loss depends on distances only. The embedding spaces of two members therefore differ by
    a random rotation or reflection. The mean over unrotated members has no meaning. Rotating a
    member by an orthogonal matrix R changes none of its distances. Let Z_m be the unit embeddings
    of the training images by member m. The rotation is argmin_R ‖Z_m R − Z_1‖ (Schönemann 1966).
    The last layer of member m is multiplied by this rotation. In directions outside the span of the
    training embeddings, R is arbitrary, so the members disagree. This disagreement is correct,
    because the data contain no information about these directions.

    Parameters
    ----------
    layers : M last layers, F to D.
    features : (N, F) for each member, of the same N training images; N ≥ D is recommended.
    """
    embedded = [
        nn.functional.normalize(layer(phi)).detach().double()
        for layer, phi in zip(layers, features, strict=True)
    ]
    first = embedded[0]
    weights, biases, agreement = [], [], []
    for layer, own in zip(layers, embedded, strict=True):
        turn = _turn(own, first)
        weights.append((turn.T @ layer.weight.detach().double()).float())
        biases.append((turn.T @ layer.bias.detach().double()).float())
        agreement.append((_mean_cosine(own, first), _mean_cosine(own @ turn, first)))
    return EnsembleFit(
        EnsemblePosterior(torch.stack(weights), torch.stack(biases)), tuple(agreement)
    )


def _turn(own: Tensor, first: Tensor) -> Tensor:
    """Return the orthogonal R (D, D) that minimises ‖``own`` R − ``first``‖."""
    if own is first:
        return torch.eye(first.shape[1], dtype=first.dtype)
    return torch.from_numpy(orthogonal_procrustes(own.numpy(), first.numpy())[0])


def _mean_cosine(directions: Tensor, others: Tensor) -> float:
    return float((directions * others).sum(1).mean())


EMBEDDING_NORM_FORMAT = "embedding-norm/1"


@dataclass(frozen=True, slots=True)
class EmbeddingNormPosterior(_OfTensors):
    """The direction of h = W φ + b is von Mises-Fisher with concentration κ = ‖h‖ / T.

    The method is from Kirchhof et al. 2022, sec. 3.2; the temperature T is added for objectives
    that do not train κ. The mean of the embedding is h, and its variance is equal in all
    dimensions. The variance is chosen so that the normalised embedding has the mean resultant
    length A_D(κ). The service therefore reports the concentration κ.

    Attributes
    ----------
    weight : (D, F)
    bias : (D,)
    temperature : scalar T > 0.
    """

    FORMAT = EMBEDDING_NORM_FORMAT
    weight: Tensor
    bias: Tensor
    temperature: Tensor

    @classmethod
    def of(cls, last_layer: nn.Linear) -> EmbeddingNormPosterior:
        """Create the posterior of a trained layer, at temperature 1."""
        return cls(last_layer.weight.detach(), last_layer.bias.detach(), torch.tensor(1.0))

    def at(self, temperature: float) -> EmbeddingNormPosterior:
        """Return a copy with the given temperature."""
        return replace(self, temperature=torch.tensor(temperature))

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F).

        Let R = A_D(κ) = κ g be the mean resultant length. The variances v then sum to ‖h‖² (1 / R²
        − 1) = T² / g² − ‖h‖². This sum is finite for h = 0, where the direction is uniform.
        """
        mean = torch.addmm(self.bias, features, self.weight.T)
        dim = self.weight.shape[0]
        squared = mean.double().square().sum(1, keepdim=True)
        temperature = self.temperature.double()
        ratio = mean_over_concentration(squared.sqrt() / temperature, dim)
        total = (temperature / ratio).square() - squared
        variance = (total / dim).clamp_min(0).to(mean.dtype)
        return mean, variance.expand(-1, dim)


def mean_over_concentration(concentration: Tensor, dim: int) -> Tensor:
    """Return A_D(κ) / κ, 1/D at κ = 0, by the expansion and recurrence of `model_store.sphere`.

    The function uses only operators of ONNX, because the posterior is exported.

    Parameters
    ----------
    concentration : (...) κ ≥ 0, float64.
    dim : D ≥ 2.
    """
    squared = concentration.square()
    n_steps = max(0, math.ceil(LOWEST_ORDER - (dim / 2 - 1)))
    order = dim / 2 - 1 + n_steps
    h = (squared + order**2).sqrt()
    s = (order / h).square()
    corrections = torch.zeros_like(h)
    for in_s in reversed(CORRECTIONS[:, :, 1].T.tolist()):
        coefficient = torch.zeros_like(h)
        for value in reversed(in_s):
            coefficient = coefficient * s + value
        corrections = (corrections + coefficient) / h
    ratio = 1 / (order + h) - (0.5 + corrections) / h.square()
    for step in reversed(range(n_steps)):
        ratio = 1 / (2 * (dim / 2 + step) + squared * ratio)
    return ratio

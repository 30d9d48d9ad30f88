"""A deep ensemble: encoders trained apart, brought into one space, and how far they disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from scipy.linalg import orthogonal_procrustes
from torch import Tensor, nn

ENSEMBLE_FORMAT = "ensemble-posterior/1"


@dataclass(frozen=True, slots=True)
class EnsemblePosterior:
    """Last layers of M members, turned so that their embeddings can be compared.

    The embedding is distributed as the members' directions are: mean and variance of M unit
    vectors, so that 1 − ‖mean‖ is their spherical variance exactly (Lakshminarayanan et al. 2017,
    of a mixture of members that are themselves certain).

    Attributes
    ----------
    weight : (M, D, F)
    bias : (M, D)
    """

    weight: Tensor
    bias: Tensor

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each.

        Parameters
        ----------
        features : (B, M·F), the features of the M members, side by side.
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

    def save(self, path: Path) -> None:
        """Write both tensors as safetensors."""
        tensors = {"weight": self.weight.contiguous(), "bias": self.bias.contiguous()}
        save_file(tensors, path, metadata={"format": ENSEMBLE_FORMAT})


@dataclass(frozen=True, slots=True)
class EnsembleFit:
    """An ensemble in one space.

    Attributes
    ----------
    posterior
    agreement : of each member, the mean cosine between its embeddings and the first member's, over
        the images that it was turned by: before, and after.
    """

    posterior: EnsemblePosterior
    agreement: tuple[tuple[float, float], ...]


def fit_ensemble(layers: Sequence[nn.Linear], features: Sequence[Tensor]) -> EnsembleFit:
    """Turn each member's embeddings onto those of the first, and keep the turned last layers.

    The loss of metric learning sees distances alone, so that members trained apart end in spaces
    that are turned or mirrored against each other at random, and the mean of their embeddings of
    one image would mean nothing. An orthogonal map changes no distance within a member; the one
    that brings its unit embeddings Z_m of the training images nearest to the first member's,
    argmin_R ‖Z_m R − Z_1‖ (Schönemann 1966), is folded into the member's last layer. Where training
    images do not reach, R is arbitrary, and members disagree: so they should.

    Parameters
    ----------
    layers : M last layers, F to D.
    features : (N, F) for each member, of the same N training images; choose N ≥ D.
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
    """The orthogonal R (D, D) with ``own`` R nearest to ``first``; the identity for itself."""
    if own is first:
        return torch.eye(first.shape[1], dtype=first.dtype)
    return torch.from_numpy(orthogonal_procrustes(own.numpy(), first.numpy())[0])


def _mean_cosine(directions: Tensor, others: Tensor) -> float:
    return float((directions * others).sum(1).mean())

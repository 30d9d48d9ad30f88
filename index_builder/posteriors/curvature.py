"""Which curvature is asked for, and the diagonal of it that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Approximation = Literal["full", "positives", "fixed"]
"""How a curvature that negatives make indefinite is kept positive (Warburg et al. 2023, App. F.3).

`full` keeps every term and cuts the sum off at zero (Eq. 98), `positives` drops the negative pairs
(Eq. 99), `fixed` moves one image of a pair at a time (Eq. 100-102, corrected)."""

Split = Literal["euclidean", "arccos"]
"""Where the l2-normalisation goes in the Gauss-Newton split (Warburg et al. 2023, Eq. 80-93).

`euclidean` counts it to the network, `arccos` to the loss."""


@dataclass(frozen=True, slots=True)
class Curvature:
    """Diagonal of the generalised Gauss-Newton matrix of a last layer h = W φ + b.

    Attributes
    ----------
    weight : (D, F), second derivatives by the entries of W.
    bias : (D,), second derivatives by b.
    """

    weight: Tensor
    bias: Tensor

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise ValueError(f"{self.weight.shape=} and {self.bias.shape=}, wanted (D, F) and (D,)")

    @classmethod
    def zeros_like(cls, weight: Tensor) -> Curvature:
        """No curvature, for a layer with weight (D, F)."""
        return cls(torch.zeros_like(weight), torch.zeros_like(weight[:, 0]))

    def __add__(self, other: Curvature) -> Curvature:
        return Curvature(self.weight + other.weight, self.bias + other.bias)

    def __mul__(self, factor: float) -> Curvature:
        return Curvature(self.weight * factor, self.bias * factor)

    def rectified(self) -> Curvature:
        """Cut off at zero, which keeps a diagonal positive semi-definite.

        Warburg et al. 2023, Eq. 98 and Prop. F.1. It belongs after the sum over the data set:
        cutting every minibatch biases the sum upwards.
        """
        return Curvature(self.weight.clamp_min(0), self.bias.clamp_min(0))

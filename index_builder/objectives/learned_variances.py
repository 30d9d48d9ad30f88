"""Objectives that train a second head: a predicted loss, PFE, and HIB."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.objectives.distances import gaussian_divergence
from index_builder.posteriors.learned_variances import LossHead, UncertaintyModule

from .objective import Objective, mean_of, positives_and_negatives

Form = Literal["ranking", "squared"]

MARGIN = 0.1
"""Margin m between the predictions of two images (Kirchhof et al. 2024)."""

TEMPERATURE = 0.1
"""Temperature of the cosines in the predicted loss."""


class LossPrediction(Objective):
    """Trains a head to predict the loss of each image; the encoder is frozen.

    ``ranking``: max(0, m − sgn(l_i − l_j)(u_i − u_j)) over pairs of images with losses l and
    predictions u (pretrained visual uncertainties, Kirchhof et al. 2024; Yoo & Kweon 2019).
    ``squared``: (l − u)², the baseline of the URL benchmark (Kirchhof et al. 2023). The papers
    predict the loss of a classifier. A retrieval model has no classifier. Here the loss of an image
    is computed from its neighbours in the batch, see `neighbour_losses`.

    Parameters
    ----------
    head : maps features to predictions.
    form : ``ranking`` or ``squared``.
    """

    def __init__(self, head: LossHead, form: Form) -> None:
        super().__init__()
        self.head = head
        self.form = form

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F); 0 if no two images share a label."""
        with torch.no_grad():
            losses, has_any = neighbour_losses(last_layer(features), labels)
        predicted = self.head(features)[has_any]
        losses = losses[has_any]
        if self.form == "squared":
            return mean_of((losses - predicted).square())
        first, second = torch.triu_indices(len(losses), len(losses), offset=1)
        order = (losses[first] - losses[second]).sign()
        gap = predicted[first] - predicted[second]
        return mean_of((MARGIN - order * gap).clamp_min(0) * order.abs())


def neighbour_losses(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return −log Σ_p e^{cos(i, p)/T} / Σ_{k≠i} e^{cos(i, k)/T} of each image i, as in SNCA.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.

    Returns
    -------
    Losses (B,), and whether each image has a positive, (B,). An image without a positive has the
    loss 0.
    """
    unit = nn.functional.normalize(embeddings)
    logits = unit @ unit.T / TEMPERATURE
    positive, negative = positives_and_negatives(labels)
    has_any = positive.any(1)
    near = logits.masked_fill(~positive, -torch.inf).logsumexp(1)
    everyone = logits.masked_fill(~(positive | negative), -torch.inf).logsumexp(1)
    return torch.where(has_any, everyone - near, 0.0), has_any


class MutualLikelihoodLoss(Objective):
    """The mean negative mutual likelihood score of pairs with the same label (Shi & Jain 2019).

    Only the variances are trained. The encoder is frozen: the means are the normalised embeddings,
    without gradient.

    Parameters
    ----------
    module : gives the variances.
    """

    def __init__(self, module: UncertaintyModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F); 0 if no two images share a label."""
        with torch.no_grad():
            mean = nn.functional.normalize(last_layer(features))
        variance = self.module(features)
        first, second = torch.triu(labels[:, None] == labels, diagonal=1).nonzero(as_tuple=True)
        if not len(first):
            nothing: Tensor = 0 * variance.sum()
            return nothing
        delta, spread = mean[first] - mean[second], variance[first] + variance[second]
        return -mutual_likelihood_score(delta, spread).mean()


def mutual_likelihood_score(delta: Tensor, variance: Tensor) -> Tensor:
    """Log p(z_i = z_j) for independent Gaussian z_i, z_j (Shi & Jain 2019, Eq. 3), in nats.

    The score is the log density of z_i − z_j at zero: −½ Σ_d [Δ_d² / s_d + log s_d] − D/2 log 2π.

    Parameters
    ----------
    delta : (..., D), Δ = μ_i − μ_j.
    variance : (..., D), s = σ²_i + σ²_j, above zero.

    Returns
    -------
    (...); the values can be negative or positive.
    """
    terms = delta.square() / variance + variance.log() + math.log(2 * math.pi)
    return -0.5 * terms.sum(-1)


_SLOPE = 10.0
"""Initial a. With this value, P(match) falls from nearly 1 to nearly 0 over a distance of about
½."""

_BOUNDARY = 1 / math.sqrt(2)
"""Initial b / a: half the distance between two orthogonal embeddings."""

_SQUARED_FLOOR = 1e-8
"""Minimum squared distance; the square root has no derivative at zero."""


class HedgedInstanceLoss(Objective):
    """The variational information bottleneck on matches (Oh et al. 2019).

    A pair of images has the loss −log P(match) if both have the same label, otherwise −log P(no
    match). The loss is the average of two means: the mean over pairs with the same label, and the
    mean over all other pairs. The loss also includes ``kl_weight`` times the divergence of a pair's
    embeddings from N(0, I). P(match) is the mean of σ(−a d + b) over K² pairs of samples: each of
    the K samples of one image is paired with each of the K samples of the other image. The slope a
    > 0 and the offset b are learned. Samples are normalised as in a search, so d is a distance on
    the unit sphere; in Oh et al., samples are not normalised. An uncertain image has an embedding
    whose mean is short relative to its standard deviation.

    Parameters
    ----------
    module : predicts the variances; the last layer predicts the means.
    kl_weight : weight of the divergence.
    n_samples : K.
    generator : draws the samples.
    """

    def __init__(
        self,
        module: UncertaintyModule,
        *,
        kl_weight: float,
        n_samples: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.module = module
        self.kl_weight = kl_weight
        self.n_samples = n_samples
        self.generator = generator
        self.raw_slope = nn.Parameter(torch.tensor(math.log(math.expm1(_SLOPE))))
        self.offset = nn.Parameter(torch.tensor(_SLOPE * _BOUNDARY))

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        mean, variance = last_layer(features), self.module(features)
        noise = torch.randn(self.n_samples, *mean.shape, generator=self.generator, dtype=mean.dtype)
        samples = nn.functional.normalize(mean + variance.sqrt() * noise, dim=-1)
        match, no_match = self.log_probabilities(samples)
        same = labels[:, None] == labels
        pairs = torch.ones_like(same).triu(diagonal=1)
        surprise = -(_mean_of(match, pairs & same) + _mean_of(no_match, pairs & ~same)) / 2
        return surprise + 2 * self.kl_weight * gaussian_divergence(mean, variance, 1.0).mean()

    def log_probabilities(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Log P(match) and log P(no match) of all pairs of images, (B, B) each.

        Parameters
        ----------
        samples : (K, B, D), unit.
        """
        n_samples, n_images, _ = samples.shape
        flat = samples.flatten(0, 1)
        distances = (2 - 2 * flat @ flat.T).clamp_min(_SQUARED_FLOOR).sqrt()
        logits = self.offset - nn.functional.softplus(self.raw_slope) * distances
        shape = (n_samples, n_images, n_samples, n_images)
        match = nn.functional.logsigmoid(logits).view(shape).logsumexp((0, 2))
        no_match = nn.functional.logsigmoid(-logits).view(shape).logsumexp((0, 2))
        return match - 2 * math.log(n_samples), no_match - 2 * math.log(n_samples)

    @staticmethod
    def module_state(learned: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state of the uncertainty module from the tensors of `learned`."""
        prefix = "module."
        return {
            name.removeprefix(prefix): value
            for name, value in learned.items()
            if name.startswith(prefix)
        }


def _mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the chosen values; 0 if no value is chosen."""
    return (values * chosen).sum() / chosen.sum().clamp_min(1)

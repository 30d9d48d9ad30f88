"""Loss prediction against plain loops; what is exported is a function of the prediction."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from index_builder.objectives import LossPrediction
from index_builder.objectives.learned_variances import MARGIN, TEMPERATURE, neighbour_losses
from index_builder.posteriors.learned_variances import LossHead, PredictedLossPosterior
from index_builder.posteriors.stored import load_posterior

LABELS = torch.tensor([2, 0, 2, 0, 2, 1])


@pytest.fixture
def features() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(LABELS), 7, generator=generator, dtype=torch.float64)


@pytest.fixture
def layer() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Linear(7, 5).double()


@pytest.fixture
def head() -> LossHead:
    return LossHead(7, torch.Generator().manual_seed(1)).double()


def test_a_generator_draws_its_weights() -> None:
    first, again, other = (
        next(LossHead(7, torch.Generator().manual_seed(seed)).parameters()) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_what_is_exported_is_not_trained_any_more(layer: nn.Linear, head: LossHead) -> None:
    assert not any(one.requires_grad for one in PredictedLossPosterior(layer, head).parameters())


def naive_losses(embeddings: Tensor) -> list[float]:
    losses = []
    for i in range(len(LABELS) - 1):  # the last has no other of its label
        terms = {
            k: math.exp(torch.cosine_similarity(embeddings[i], embeddings[k], 0) / TEMPERATURE)
            for k in range(len(LABELS))
            if k != i
        }
        near = sum(value for k, value in terms.items() if LABELS[k] == LABELS[i])
        losses.append(-math.log(near / sum(terms.values())))
    return losses


def test_the_loss_of_an_image_is_that_of_its_neighbours(features: Tensor, layer: nn.Linear) -> None:
    embeddings = layer(features).detach()
    losses, has_any = neighbour_losses(embeddings, LABELS)
    assert has_any.tolist() == [True] * 5 + [False]
    torch.testing.assert_close(losses[:5], torch.tensor(naive_losses(embeddings)).double())
    assert losses[5] == 0


def test_ranking_wants_predictions_in_the_order_of_losses(
    features: Tensor, layer: nn.Linear, head: LossHead
) -> None:
    losses = naive_losses(layer(features).detach())
    predicted = head(features).tolist()
    terms = [
        max(0.0, MARGIN - math.copysign(1, losses[i] - losses[j]) * (predicted[i] - predicted[j]))
        for i, j in itertools.combinations(range(5), 2)
    ]
    found = LossPrediction(head, "ranking")(features, LABELS, layer)
    assert found.item() == pytest.approx(sum(terms) / len(terms))


def test_squared_wants_the_losses_themselves(
    features: Tensor, layer: nn.Linear, head: LossHead
) -> None:
    losses = torch.tensor(naive_losses(layer(features).detach())).double()
    found = LossPrediction(head, "squared")(features, LABELS, layer)
    torch.testing.assert_close(found, (losses - head(features)[:5]).square().mean())


@pytest.mark.parametrize("form", ["ranking", "squared"])
def test_the_encoder_gets_no_gradient_and_the_head_does(
    form: str, features: Tensor, layer: nn.Linear, head: LossHead
) -> None:
    torch.autograd.backward(LossPrediction(head, form)(features, LABELS, layer))  # type: ignore[arg-type]
    assert layer.weight.grad is None
    assert all(one.grad is not None and one.grad.any() for one in head.parameters())
    alone = torch.arange(len(LABELS))
    assert LossPrediction(head, form)(features, alone, layer) == 0  # type: ignore[arg-type]


def test_the_spread_of_a_direction_is_the_predicted_loss_alone(
    features: Tensor, layer: nn.Linear, head: LossHead, tmp_path: Path
) -> None:
    posterior = PredictedLossPosterior(layer.float(), head.float(), 0.3)
    mean, variance = posterior.predict(features.float())
    relative = variance.sum(1) / mean.square().sum(1)
    torch.testing.assert_close(relative, 0.3 * head(features.float()), atol=1e-5, rtol=1e-5)
    posterior.save(tmp_path / "posterior.safetensors")
    again = load_posterior(tmp_path / "posterior.safetensors")
    torch.testing.assert_close(again.predict(features.float()), (mean, variance))
    twice = posterior.at(0.6).predict(features.float())[1]
    torch.testing.assert_close(twice, 2 * variance)

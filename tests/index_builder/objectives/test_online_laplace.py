"""Online Laplace as an objective: what it accumulates while a real training loop runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from index_builder.configuration.encoder import TrainingConfig
from index_builder.objectives import OnlineLaplaceLoss, contrastive_loss
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, TargetScaling
from index_builder.posteriors.laplace.fit import fit_laplace
from index_builder.posteriors.laplace.minibatches import MinibatchPlan
from index_builder.training import balanced_batches
from tests.support.narrowing import instance_of

LABELS = torch.arange(200) % 4
PLAN = MinibatchPlan(n_labels=4, n_images=6)


def objective(
    layer: nn.Linear,
    n_samples: int = 0,
    labels: Tensor = LABELS,
    approximation: Approximation = "fixed",
    memory_factor: float = 0.02,
    scaling: TargetScaling = "per_anchor",
) -> OnlineLaplaceLoss:
    return OnlineLaplaceLoss(
        layer,
        labels,
        PLAN,
        margin=1.0,
        structure="diagonal",
        approximation=approximation,
        split="euclidean",
        scaling=scaling,
        memory_factor=memory_factor,
        prior_precision=5.0,
        initial_precision=100.0,
        n_samples=n_samples,
        generator=torch.Generator().manual_seed(0),
    )


def learned_by(online: OnlineLaplaceLoss) -> Curvature:
    curvature = OnlineLaplaceLoss.curvature(online.learned()).rectified()
    return instance_of(Curvature, curvature)


CENTRES = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
FEATURES = CENTRES[LABELS] + 0.7 * torch.randn(200, 6, generator=torch.Generator().manual_seed(2))


def test_the_point_form_minimises_the_contrastive_loss_and_the_prior() -> None:
    layer = nn.Linear(6, 3)
    value = objective(layer)(FEATURES[:20], LABELS[:20], layer)
    squares = layer.weight.square().sum() + layer.bias.square().sum()
    expected = contrastive_loss(layer(FEATURES[:20]), LABELS[:20], 1.0) + 5.0 / 400 * squares
    torch.testing.assert_close(value, expected)


def test_what_it_leaves_is_near_the_post_hoc_curvature() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    online = objective(layer)
    order = torch.Generator().manual_seed(3)
    for _ in range(400):
        chosen = [
            torch.nonzero(LABELS.eq(c)).flatten()[torch.randperm(50, generator=order)[:6]]
            for c in range(4)
        ]
        rows = torch.cat(chosen)
        online(FEATURES[rows], LABELS[rows], layer)
    left = learned_by(online)
    fit = fit_laplace(
        lambda: [FEATURES],
        LABELS,
        layer.weight,
        layer.bias,
        structure="diagonal",
        margin=1.0,
        prior_precision=1.0,
    )
    ratio = left.weight.sum() / (200 * instance_of(Curvature, fit.curvature).weight.sum())
    assert abs(float(ratio) - 1) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("approximation", "scaling"),
    [
        ("fixed", "per_anchor"),
        ("positives", "per_anchor"),
        ("full", "per_anchor"),
        ("positives", "global"),
    ],
)
def test_labels_of_unequal_size_count_as_often_as_the_data_hold_them(
    approximation: Approximation, scaling: TargetScaling
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    labels = torch.cat([LABELS[LABELS == 0], LABELS[LABELS != 0][:45], torch.tensor([4])])
    spread = 0.4 + labels[:, None] / 2  # so that a label's share of the curvature shows
    noise = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(4))
    features = torch.cat([CENTRES, CENTRES[:1] + 1])[labels] + spread * noise
    online = objective(
        layer, labels=labels, approximation=approximation, memory_factor=4e-3, scaling=scaling
    )
    batches = balanced_batches(
        labels,
        TrainingConfig(labels_per_batch=4, images_per_label=6),
        750,
        torch.Generator().manual_seed(3),
    )
    for rows in batches:
        online(features[rows], labels[rows], layer)
    left = learned_by(online).weight
    fit = fit_laplace(
        lambda: [features],
        labels,
        layer.weight,
        layer.bias,
        structure="diagonal",
        margin=1.0,
        approximation=approximation,
        scaling=scaling,
        prior_precision=1.0,
        seed=5,
        plan=MinibatchPlan(1, 5, 99),  # the whole data set, so that `full` is exact as well
    )
    exact = len(labels) * instance_of(Curvature, fit.curvature).weight
    assert float((left - exact).abs().max() / exact.max()) < 0.05


def test_the_expectation_form_trains_through_drawn_layers() -> None:
    layer = nn.Linear(6, 3)
    online = objective(layer, n_samples=3)
    values = [float(online(FEATURES[:40], LABELS[:40], layer).detach()) for _ in range(4)]
    assert len(set(values)) == 4
    online(FEATURES[:40], LABELS[:40], layer).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().min() > 0

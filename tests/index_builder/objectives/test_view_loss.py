"""Objectives of views: the batches that they get, and their values by sums."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

from index_builder.configuration.encoder import TrainingConfig
from index_builder.objectives.objective import Sampling
from index_builder.objectives.similarities import MonteCarloInfoNceLoss, simclr
from index_builder.objectives.von_mises_fisher import sample_von_mises_fisher
from index_builder.training import batches_of
from tests.index_builder.objectives.test_classification import identity
from tests.support.small_batches import embeddings, gradient, total, unit

VIEWS = torch.tensor([4, 2, 9, 4, 2, 9])
"""Two views of each of three images, as `batches_of` numbers them."""


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_simclr_is_the_librarys_self_supervised_loss() -> None:
    z = embeddings(6)
    value = simclr(0.5)(z, VIEWS, identity())
    expected = SelfSupervisedLoss(NTXentLoss(0.5))(z[:3], z[3:])
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)


def test_mc_info_nce_averages_over_draws_within_the_logarithm() -> None:
    z, n_samples, kappa = embeddings(6), 7, 3.0
    objective = MonteCarloInfoNceLoss(concentration=kappa, n_samples=n_samples, generator=draw())
    value = objective(z, VIEWS, identity())
    drawn = sample_von_mises_fisher(unit(z), z.norm(dim=1), n_samples, draw())
    terms = []
    for i in range(6):
        p = (i + 3) % 6
        shares = []
        for sample in drawn:
            likelihoods = [(kappa * sample[i] @ sample[k]).exp() for k in range(6) if k != i]
            shares.append((kappa * sample[i] @ sample[p]).exp() / total(likelihoods))
        terms.append(-torch.stack(shares).mean().log())
    expected = torch.stack(terms).mean()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("labels", [[0, 0], [0, 1], [0, 0, 0, 0]])
def test_limits_are_finite(labels: list[int]) -> None:
    z = embeddings(len(labels))
    objective = MonteCarloInfoNceLoss(concentration=20.0, n_samples=3, generator=draw())
    for loss in (objective, simclr(0.5)):
        value = loss(z, torch.tensor(labels), identity())
        assert math.isfinite(value.item())
        assert gradient(value, z).isfinite().all()


LABELS = torch.tensor([0] * 9 + [1] * 3 + [2] * 12)
CONFIG = TrainingConfig(labels_per_batch=2, images_per_label=4)


def test_views_are_every_image_twice_and_know_no_label() -> None:
    n_batches, drawn = batches_of("views", LABELS, CONFIG, draw())
    batches = list(drawn)
    assert len(batches) == n_batches == 6
    for rows, labels in batches:
        assert rows.shape == (8,)
        assert torch.equal(rows[:4], rows[4:])
        assert torch.equal(labels, rows)
    seen = torch.cat([rows[:4] for rows, _ in batches])
    assert sorted(seen.tolist()) == list(range(24))


def test_shuffled_batches_hold_each_image_once_an_epoch() -> None:
    n_batches, batches = batches_of("shuffled", LABELS, CONFIG, draw())
    rows, labels = (torch.cat(list(each)) for each in zip(*batches, strict=True))
    assert n_batches == 3
    assert sorted(rows.tolist()) == list(range(24))
    assert torch.equal(labels, LABELS[rows])
    assert rows.tolist() != list(range(24))


def test_of_fewer_images_than_a_batch_there_is_one_batch() -> None:
    few = torch.tensor([0, 0, 1])
    sizes: dict[Sampling, int] = {"shuffled": 3, "views": 6}
    for sampling, size in sizes.items():
        n_batches, batches = batches_of(sampling, few, CONFIG, draw())
        assert n_batches == 1
        assert [len(rows) for rows, _ in batches] == [size]


def test_pairs_are_two_images_of_as_many_labels_as_go_into_a_batch() -> None:
    labels = torch.arange(10).repeat_interleave(2)
    n_batches, batches = batches_of("pairs", labels, CONFIG, draw())
    assert n_batches == 2
    for _, seen in batches:
        assert torch.bincount(seen).unique().tolist() in ([0, 2], [2])
        assert len(seen) == 8

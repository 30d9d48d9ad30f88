from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from index_builder.posteriors.laplace.held_out import N_SAMPLES, vote_log_likelihood
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior

GALLERY = torch.eye(3)
GALLERY_LABELS = np.array([0, 1, 2])


def posterior(variance: float) -> LastLayerPosterior:
    """The embedding is the features, give or take ``variance`` an entry."""
    return LastLayerPosterior(
        torch.eye(3), torch.zeros(3), torch.full((3, 3), variance), torch.full((3,), 1e-9)
    )


def log_likelihood(variance: float, queries: torch.Tensor, labels: NDArray[np.int64]) -> float:
    criterion = vote_log_likelihood(posterior(1e-6), queries, labels, GALLERY, GALLERY_LABELS, 0)
    return criterion(posterior(variance))


def test_unanimous_votes_are_worth_what_they_say() -> None:
    queries, right, wrong = torch.eye(3), np.array([0, 1, 2]), np.array([1, 2, 0])
    best = math.log((N_SAMPLES + 1) / (N_SAMPLES + 2))
    worst = math.log(1 / (N_SAMPLES + 2))
    assert log_likelihood(1e-8, queries, right) == pytest.approx(best)
    assert log_likelihood(1e-8, queries, wrong) == pytest.approx(worst)


def test_the_best_variance_is_the_one_that_made_the_errors() -> None:
    """Queries scattered about their label's direction by a known variance."""
    generator = torch.Generator().manual_seed(1)
    labels = np.tile(np.arange(3), 400)
    true_variance = 0.15
    noise = torch.randn(1200, 3, generator=generator)
    queries = torch.eye(3)[labels] + math.sqrt(true_variance) * noise
    # A query's own embedding is uncertain by Σ φ² v: of the order of ‖φ‖² v.
    tried = [1e-6, 1e-2, 0.1, 1e1, 1e3]
    values = [log_likelihood(variance, queries, labels) for variance in tried]
    assert max(values) in values[1:3]
    assert values[0] < min(values[1:3])
    assert min(values[1:3]) > values[3] > values[4]


def test_the_same_seed_gives_the_same_value() -> None:
    queries = torch.rand(5, 3, generator=torch.Generator().manual_seed(2))
    labels = np.array([0, 1, 2, 0, 1])
    assert log_likelihood(0.3, queries, labels) == log_likelihood(0.3, queries, labels)


def test_many_images_of_each_label_do_not_make_noise_a_good_vote() -> None:
    """The nearest of a large gallery are all of one label, which noise would vote for as well."""
    generator = torch.Generator().manual_seed(3)
    labels = np.tile(np.arange(3), 600)
    gallery = torch.eye(3)[labels] + 0.05 * torch.randn(1800, 3, generator=generator)
    asked = np.tile(np.arange(3), 40)
    queries = torch.eye(3)[asked] + 0.3 * torch.randn(120, 3, generator=generator)
    criterion = vote_log_likelihood(posterior(1e-6), queries, asked, gallery, labels, 3)
    tried = [1e-9, 1e-3, 0.05, 1.0, 1e6]
    values = [criterion(posterior(variance)) for variance in tried]
    assert max(values) == max(values[1:4])
    assert values[-1] < max(values) - 0.3

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import entropy

from index_builder.metrics import (
    cluster_diversity,
    feature_diversity,
    mean_nn_entropy,
    normalised_mutual_information,
)


@pytest.mark.process  # scikit-learn counts cores by lscpu, once
def test_clear_clusters_are_found() -> None:
    centres = np.eye(3)[[0, 0, 1, 1, 2, 2, 2]]
    noise = np.random.default_rng(0).normal(0, 0.01, centres.shape)
    codes = np.array([5, 5, 9, 9, 1, 1, 1])
    assert normalised_mutual_information(centres + noise, codes, 0) == pytest.approx(1.0)


@pytest.mark.process  # scikit-learn counts cores by lscpu, once
def test_half_of_what_clusters_say_may_be_news() -> None:
    # Four places, labelled by one of two bits. k-means with two clusters finds the wide one.
    places = np.array([[0, 0], [0, 1], [9, 0], [9, 1]] * 5, dtype=float)
    assert normalised_mutual_information(places, np.array([0, 1] * 10), 0) == pytest.approx(0)
    assert normalised_mutual_information(places, np.array([0, 0, 1, 1] * 5), 0) == pytest.approx(1)


def test_a_single_label_has_no_clusters() -> None:
    assert normalised_mutual_information(np.eye(3), np.zeros(3, dtype=int), 0) is None


def test_feature_diversity_is_by_the_spectrum() -> None:
    vectors = np.diag([4.0, 2.0, 2.0])
    expected = np.exp(-entropy([1 / 3] * 3, [0.5, 0.25, 0.25]))
    assert feature_diversity(vectors) == pytest.approx(expected)
    assert feature_diversity(np.eye(5)) == pytest.approx(1.0)


def test_a_collapsed_embedding_has_no_diversity() -> None:
    flat = np.random.default_rng(0).normal(size=(20, 3)) @ np.diag([1, 1, 0])
    assert feature_diversity(flat) == 0.0
    assert feature_diversity(np.ones((1, 3))) == 0.0


def test_cluster_diversity_is_the_variance_of_distances_within_labels() -> None:
    vectors = np.array([[0.0], [1.0], [3.0], [0.0], [5.0], [7.0]])
    codes = np.array([0, 0, 0, 1, 1, 2])
    of_first = np.var([1, 3, 2])  # the second label has one distance, the third none
    assert cluster_diversity(vectors, codes) == pytest.approx((of_first + 0) / 2)


def test_single_items_have_no_diversity() -> None:
    assert cluster_diversity(np.eye(3), np.arange(3)) is None


def test_the_entropy_by_all_distances_leaves_out_that_to_itself() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 3))
    logs = [
        np.log(((a - b) ** 2).sum())
        for i, a in enumerate(vectors)
        for j, b in enumerate(vectors)
        if i != j
    ]
    assert mean_nn_entropy(vectors) == pytest.approx(3 * np.sum(logs) / (6 * 5))
    # Twice as large a normal distribution has log 2 more for each dimension, counted twice here.
    assert mean_nn_entropy(2 * vectors) == pytest.approx(
        mean_nn_entropy(vectors) + 2 * 3 * np.log(2)
    )
    assert mean_nn_entropy(np.ones((3, 2))) is None

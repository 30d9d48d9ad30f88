from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index_builder.configuration.build import BuildConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import from_arrays
from index_builder.reproduction.command import reproduce
from index_builder.reproduction.protocols import PROTOCOLS, Task, load_protocol, protocol_config
from index_builder.reproduction.protocols.loaders import inverted
from index_builder.reproduction.protocols.protocol import (
    MATCH_DISTANCE,
    all_against_all,
    held_out_task,
    without_some_labels,
)
from model_store.errors import ConfigError
from tests.support.narrowing import not_none


def images(labels: str, prefix: str = "x") -> LabelledImages:
    return from_arrays(prefix, np.arange(len(labels) * 4, dtype=np.uint8).reshape(-1, 2, 2), labels)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_has_a_configuration(name: str) -> None:
    assert protocol_config(name).dataset.protocol == name


def test_an_unknown_protocol_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'imagenet'.* digits, .* objectives, stereo"):
        reproduce("imagenet", "all", 1, tmp_path)


def test_the_test_has_no_part_in_anything_else() -> None:
    data = load_protocol(protocol_config("digits"))
    test = {*data.test.queries.ids, *data.test_outliers["3 and 8"].images.ids}
    learned = {*data.training.ids, *data.validation.ids, *data.development.queries.ids}
    assert not test & learned
    assert not {*data.training.ids, *data.validation.ids} & {*data.development.queries.ids}
    assert {*data.training.ids, *data.validation.ids} == {*data.test.gallery.ids}
    first = data.development_outliers.pixels(0)
    assert not any(
        np.array_equal(first, data.test_outliers["photographs"].images.pixels(row))
        for row in range(100)
    )


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", ["fashion-mnist-authors", "fashion-mnist-small", "omniglot"])
def test_no_test_image_is_learned_from(data_dir: Path, name: str) -> None:
    data = load_protocol(protocol_config(name, data=data_dir))
    test = {*data.test.queries.ids}
    developed = {*data.development.queries.ids, *data.development.gallery.ids}
    assert not test & {*data.training.ids, *data.validation.ids, *developed}
    numbers = {"omniglot": 13_180, "fashion-mnist-small": 1_000, "fashion-mnist-authors": 10_000}
    assert len(test) == numbers[name]
    if name == "omniglot":
        learned = {*data.training.labels, *data.validation.labels}
        assert not learned & {*data.development.queries.labels}
        assert not learned & {*data.test.queries.labels}


def test_queries_that_are_items_are_not_their_own_match() -> None:
    task = all_against_all(images("aabbbc"))
    assert task.queries.labels == tuple("aabbb")  # the one of c has no other
    assert task.n_relevant().tolist() == [1, 1, 2, 2, 2]
    assert not_none(task.own_rows()).tolist() == [0, 1, 2, 3, 4]
    found = np.array([[1, 5], [4, 0]])
    assert task.matches(found, np.array([0, 2])).tolist() == [[True, False], [True, False]]


def test_a_match_may_be_a_distance() -> None:
    places = {"q": np.array([[0.0, 0.0], [500.0, 0.0]]), "g": np.array([[15.0, 20.0], [15.1, 20]])}
    task = Task(images("ab", "q"), images("cd", "g"), positions=lambda one: places[one.ids[0][0]])
    assert np.hypot(*places["g"][0]) == MATCH_DISTANCE
    assert task.n_relevant().tolist() == [1, 0]
    assert task.matches(np.array([[0, 1]]), np.array([0])).tolist() == [[True, False]]


def test_a_development_task_has_queries_and_a_gallery_of_the_same_labels() -> None:
    task = held_out_task(images("aaaaabbbbb"), np.random.default_rng(0))
    assert sorted(task.queries.labels) == ["a", "b"]
    assert len(task.gallery) == 8
    assert not {*task.queries.ids} & {*task.gallery.ids}


def test_labels_are_held_out_whole() -> None:
    kept, held_out = without_some_labels(images("aabbccddee"), 0.4, np.random.default_rng(0))
    assert len(set(held_out.labels)) == 2
    assert not {*kept.labels} & {*held_out.labels}
    assert len(kept) + len(held_out) == 10


def test_inverted_is_dark_for_bright() -> None:
    source = images("ab")
    np.testing.assert_array_equal(inverted(source).at([1]).pixels(0), 255 - source.pixels(1))


def test_the_seed_decides_what_is_held_out() -> None:
    one, other = (load_protocol(protocol_config("digits", seed=seed)) for seed in (0, 1))
    assert one.training.ids != other.training.ids


def test_a_build_knows_no_protocol() -> None:
    with pytest.raises(
        ValueError, match="'folder', 'vectors', 'digits', 'fashion-mnist' or 'mnist'"
    ):
        BuildConfig.model_validate({"name": "x", "dataset": {"kind": "protocol"}})

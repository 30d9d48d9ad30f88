"""Groups of images are never divided, and labels give what they should all the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from index_builder.datasets.groups import held_out_groups, named_groups, pairs_of_equal, united
from index_builder.datasets.images import LabelledImages, from_arrays
from index_builder.datasets.splits import _halves, stratified
from tests.support.narrowing import not_none


def images_of(labels: list[str], groups: list[str] | None = None) -> LabelledImages:
    pixels = np.zeros((len(labels), 2, 2), dtype=np.uint8)
    images = from_arrays("x", pixels, labels)
    return images if groups is None else replace(images, groups=tuple(groups))


def held_out(
    labels: NDArray[np.int64], groups: NDArray[np.int64], share: float = 0.2
) -> NDArray[np.bool_]:
    """The images whose group is held out, groups visited in the order of their numbers."""
    sizes = np.bincount(labels)
    wanted = sizes - np.rint((1 - share) * sizes).astype(np.int64)
    order = np.arange(groups.max() + 1)
    return held_out_groups(labels, groups, order, share, wanted, sizes - 1)[groups]


def test_groups_are_the_connected_components() -> None:
    codes = np.array([3, -1, 3, -1, 7, 3, 7])
    assert sorted(map(tuple, pairs_of_equal(codes).tolist())) == [(0, 2), (2, 5), (4, 6)]
    numbers = united(7, [pairs_of_equal(codes), np.array([[1, 6]])])
    assert numbers[0] == numbers[2] == numbers[5]
    assert numbers[1] == numbers[4] == numbers[6]
    assert len(set(numbers.tolist())) == 3


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 30))
def test_no_group_is_divided_and_every_label_stays(seed: int, n_labels: int, n: int) -> None:
    generator = np.random.default_rng(seed)
    labels = np.unique(generator.integers(n_labels, size=n), return_inverse=True)[1]
    groups = np.unique(generator.integers(n, size=n), return_inverse=True)[1]  # across labels too
    out = held_out(labels, groups)
    assert not set(groups[out]) & set(groups[~out])
    assert set(labels[~out]) == set(labels)


def test_images_of_their_own_give_what_rounding_says() -> None:
    labels = np.repeat(np.arange(28), np.arange(3, 31))
    out = held_out(labels, np.arange(len(labels)))
    sizes = np.bincount(labels)
    np.testing.assert_array_equal(np.bincount(labels[out]), sizes - np.rint(0.8 * sizes))


@pytest.mark.parametrize("each", [1, 4])
def test_labels_of_two_groups_give_a_fifth_together(each: int) -> None:
    groups = np.repeat(np.arange(100), each)
    labels = groups // 2
    out = held_out(labels, groups)
    assert len(set(labels[out])) == 20  # two labels in five, one of two groups each
    assert out.sum() == 20 * each


def test_a_label_of_one_group_gives_nothing() -> None:
    labels = np.repeat([0, 1], [8, 20])
    groups = np.concatenate([np.zeros(8, dtype=np.int64), 1 + np.arange(20) // 4])
    out = held_out(labels, groups)
    assert labels[out].tolist() == [1] * 4


def test_without_groups_the_split_is_what_it_was() -> None:
    labels = list("aaaaaaabbbbbccccccccccccdde")
    first, second = stratified(
        images_of(labels), 0.7, np.random.default_rng(5), at_least_one_left=True
    )
    generator, wanted = np.random.default_rng(5), []
    for label, n_first in zip("abcde", (5, 4, 8, 1, 1), strict=True):
        members = generator.permutation([i for i, one in enumerate(labels) if one == label])
        wanted += members[:n_first].tolist()
    ids = images_of(labels).ids
    assert first.ids == tuple(ids[i] for i in sorted(wanted))
    assert set(second.ids) == set(ids) - set(first.ids)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "keep"), [(0.8, True), (0.5, False)])
def test_no_split_divides_a_group(seed: int, share: float, keep: bool) -> None:
    labels = [f"l{i // 12}" for i in range(480)]
    groups = [f"g{i // 4}" for i in range(480)]
    images = images_of(labels, groups)
    first, second = stratified(images, share, np.random.default_rng(seed), keep=keep)
    assert not set(not_none(first.groups)) & set(not_none(second.groups))
    assert len(first) + len(second) == 480
    assert len(first) == pytest.approx(share * 480, abs=4)
    if keep:
        assert set(first.labels) == set(labels)
    again, _ = stratified(images, share, np.random.default_rng(seed), keep=keep)
    assert again.ids == first.ids


def test_halves_of_images_without_labels_divide_no_group() -> None:
    images = images_of([str(i) for i in range(60)], [f"g{i // 3}" for i in range(60)])
    order = np.random.default_rng(0).permutation(60)
    first, second = _halves(images, order)
    assert not set(not_none(first.groups)) & set(not_none(second.groups))
    assert len(first) == len(second) == 30
    alone = _halves(replace(images, groups=None), order)
    assert [half.ids for half in alone] == [
        tuple(images.ids[i] for i in sorted(half)) for half in np.split(order, 2)
    ]


def test_groups_have_the_name_that_the_source_gives_or_that_of_an_image() -> None:
    """A later photograph joins a group by its name, so no number may be a name."""
    alike = np.array([[2, 3], [4, 5]])
    names = ["burst", None, None, "burst", None, None, "0"]
    assert named_groups([alike], names, tuple("abcdefg")) == (
        *("burst", "item b", "burst", "burst", "item e", "item e", "0"),
    )

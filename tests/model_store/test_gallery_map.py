"""The map of a gallery: principal components, sampled and scaled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from model_store import gallery_map
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.errors import InvalidRequest
from model_store.gallery import (
    FaissGallery,
    IndexSettings,
    NewItem,
    read_filter,
    write_faiss_gallery,
)
from model_store.gallery_map import (
    LAST_STEP,
    MAX_COLOURS,
    NO_COLOUR,
    Plane,
    colours_of,
    points_of,
    principal_axes,
)
from tests.laws.gallery_laws import random_embeddings
from tests.support.filters_in_words import PICTURE


@pytest.fixture(scope="module")
def bundle(digits_bundle: Path) -> Bundle:
    return open_bundle(digits_bundle, "cpu", threads=1)


def gallery_of(directions: np.ndarray[Any, Any], *, is_local: bool = True) -> Any:
    """A gallery of these vectors, which knows no more than a map needs."""
    return SimpleNamespace(
        dim=directions.shape[1],
        is_local=is_local,
        rows=lambda: np.arange(len(directions)),
        directions=lambda rows: directions[rows],
    )


@pytest.mark.parametrize("shape", [(400, 7), (6, 40), (3, 2), (2, 5)])
def test_principal_axes_equal_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(1)
    points = generator.standard_normal(shape) * np.linspace(1, 3, shape[1]) + 5
    axes, shares = principal_axes(points)
    oracle = PCA(2, svd_solver="full").fit(points)
    assert shares == pytest.approx(oracle.explained_variance_ratio_, abs=1e-9)
    for axis, known, share in zip(axes, oracle.components_, shares, strict=True):
        if share > 1e-9:
            assert abs(axis @ known) == pytest.approx(1, abs=1e-9)
            along = (points - points.mean(axis=0)) @ axis
            assert along.max() >= -along.min() - 1e-9


@pytest.mark.parametrize("points", [np.empty((0, 3)), np.ones((1, 3)), np.ones((9, 3))])
def test_points_without_variance_have_no_axes(points: np.ndarray[Any, Any]) -> None:
    axes, shares = principal_axes(points)
    assert not axes.any()
    assert not shares.any()
    gallery = gallery_of(points.astype(np.float32))
    found = points_of(gallery, Plane.of(gallery))
    assert len(found.positions) == found.n_passing == len(points)


def test_map_is_deterministic_and_keeps_the_distances_in_the_plane(bundle: Bundle) -> None:
    gallery = bundle.retriever.gallery
    plane = Plane.of(gallery)
    found = points_of(gallery, plane)
    again = points_of(gallery, Plane.of(gallery))
    assert np.array_equal(found.positions, again.positions)
    assert found.positions.min(axis=0).tolist() == [0, 0]
    assert found.positions.max() == LAST_STEP
    along = gallery.directions(found.rows) @ plane.axes.T
    wanted = np.linalg.norm(along[0] - along[1:], axis=1) / plane.extent * LAST_STEP
    steps = found.positions.astype(float)
    assert np.linalg.norm(steps[0] - steps[1:], axis=1) == pytest.approx(wanted, abs=2)
    assert 0 < plane.shares[1] <= plane.shares[0] < 1


def test_filter_leaves_out_items_and_moves_none(bundle: Bundle) -> None:
    gallery = bundle.retriever.gallery
    plane = Plane.of(gallery)
    every, sevens = (
        points_of(gallery, plane),
        points_of(gallery, plane, read_filter('{"label": "7"}')),
    )
    assert 0 < len(sevens.rows) == sevens.n_passing < every.n_passing
    assert {item.label for item in gallery.items(sevens.rows)} == {"7"}
    assert np.array_equal(sevens.positions, every.positions[np.isin(every.rows, sevens.rows)])


def test_item_has_the_same_position_among_any_others() -> None:
    directions = np.random.default_rng(3).standard_normal((3000, 129)).astype(np.float32)
    gallery, rows = gallery_of(directions), np.arange(3000)
    plane = Plane.of(gallery)
    every = plane.positions(gallery, rows)
    for step in range(1, 60):
        some = rows[step::step]
        assert np.array_equal(plane.positions(gallery, some), every[some])


def test_large_gallery_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery_map, "MAX_POINTS", 50)
    monkeypatch.setattr(gallery_map, "MAX_POINTS_ELSEWHERE", 20)
    directions = np.random.default_rng(2).standard_normal((200, 4)).astype(np.float32)
    for is_local, n in ((True, 50), (False, 20)):
        gallery = gallery_of(directions, is_local=is_local)
        found = points_of(gallery, Plane.of(gallery))
        assert (len(found.rows), found.n_passing) == (n, 200)
        assert np.array_equal(found.rows, np.unique(found.rows))
        assert np.array_equal(points_of(gallery, Plane.of(gallery)).rows, found.rows)


def test_labels_have_colours_by_frequency(bundle: Bundle) -> None:
    gallery = bundle.retriever.gallery
    rows = gallery.rows()
    colours, codes = colours_of(gallery, rows, "label")
    labels = np.array([item.label for item in gallery.items(rows)])
    counts = [colour.n_items for colour in colours]
    assert len(colours) == min(MAX_COLOURS, len(set(labels)))
    assert counts == sorted(counts, reverse=True)
    for code, colour in enumerate(colours):
        assert set(labels[codes == code]) == {colour.value}
        assert (codes == code).sum() == colour.n_items == (labels == colour.value).sum()
    assert (codes == NO_COLOUR).sum() == len(rows) - sum(counts)


@pytest.fixture
def with_fields(tmp_path: Path) -> FaissGallery:
    """Forty items with a text, a list and a number; one has none of them."""
    fields: list[dict[str, Any]] = [
        {"maker": "Ono" if row % 3 else "Ylva", "tags": ["red", f"t{row % 2}"], "year": 1900 + row}
        for row in range(39)
    ]
    items = [
        NewItem(f"{row:03d}", None, metadata, PICTURE) for row, metadata in enumerate([*fields, {}])
    ]
    write_faiss_gallery(tmp_path, random_embeddings(40, 4, 0), items, "e", IndexSettings())
    return FaissGallery(tmp_path)


def test_other_fields_have_colours_by_value_or_range(with_fields: FaissGallery) -> None:
    gallery, rows = with_fields, with_fields.rows()
    colours, codes = colours_of(gallery, rows, "maker")
    assert [(colour.value, colour.n_items) for colour in colours] == [("Ono", 26), ("Ylva", 13)]
    assert codes.tolist() == [0 if row % 3 else 1 for row in range(39)] + [NO_COLOUR]
    colours, codes = colours_of(gallery, rows, "tags")  # the most frequent of an item's values
    assert [(colour.value, colour.n_items) for colour in colours][:2] == [("red", 39), ("t0", 0)]
    assert codes.tolist() == [0] * 39 + [NO_COLOUR]
    colours, codes = colours_of(gallery, rows, "year")
    assert (colours[0].least, colours[-1].greatest) == (1900, 1938)
    assert sum(colour.n_items for colour in colours) == 39
    for row, code in enumerate(codes.tolist()[:39]):
        colour = colours[code]
        assert colour.value is None
        assert colour.least is not None
        assert colour.greatest is not None
        is_last = colour is colours[-1]
        assert colour.least <= 1900 + row < colour.greatest or (is_last and row == 38)
    with pytest.raises(InvalidRequest, match="no index of it"):
        colours_of(gallery, rows, "nothing")

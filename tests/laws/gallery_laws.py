"""What every Gallery keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.errors import ItemNotFound
from model_store.gallery import Gallery, MaskedRows, NewItem, Thumbnail, parse_filter

BuildGallery = Callable[[Embeddings, Sequence[NewItem]], Gallery]


def random_embeddings(n: int, dim: int, seed: int) -> Embeddings:
    """Embeddings of unequal norms and variances."""
    generator = np.random.default_rng(seed)
    mean = generator.standard_normal((n, dim)) * generator.uniform(0.5, 3, (n, 1))
    variance = generator.uniform(0.01, 0.2, (n, dim))
    features = np.empty((n, 0), dtype=np.float32)
    return Embeddings(mean.astype(np.float32), variance.astype(np.float32), features)


def new_items(n: int, labels: str = "abc") -> list[NewItem]:
    """Items whose ids come in another order than their positions."""
    order = np.random.default_rng(n).permutation(n)
    return [
        NewItem(
            f"item-{order[i]:03d}",
            None if i % 7 == 0 else labels[i % len(labels)],
            {"place": i},
            Thumbnail(bytes([i % 256, 1]), "image/png"),
        )
        for i in range(n)
    ]


class GalleryLaws:
    """Inherit, and supply a fixture `build` that makes a gallery."""

    variance_error = 1e-5
    """Relative, of the variances that a gallery keeps."""

    def test_finds_what_brute_force_finds(self, build: BuildGallery) -> None:
        embeddings, items = random_embeddings(90, 5, seed=0), new_items(90)
        gallery = build(embeddings, items)
        unit = embeddings.mean / np.linalg.norm(embeddings.mean, axis=1, keepdims=True)
        queries = unit[:4] @ np.linalg.qr(np.random.default_rng(1).standard_normal((5, 5)))[0]
        queries = queries.astype(np.float32)
        found = gallery.candidates(queries, 12)
        for query, rows, similarities in zip(queries, found.rows, found.similarities, strict=True):
            expected = sorted(range(90), key=lambda i: (-(unit[i] @ query), items[i].id))[:12]
            assert [item.id for item in gallery.items(rows)] == [items[i].id for i in expected]
            np.testing.assert_allclose(similarities, unit[expected] @ query, atol=2e-6)

    def test_each_id_keeps_its_own_vector_label_and_picture(self, build: BuildGallery) -> None:
        embeddings, items = random_embeddings(40, 6, seed=2), new_items(40)
        gallery = build(embeddings, items)
        rows = np.arange(40)
        position = {item.id: i for i, item in enumerate(items)}
        directions, total_variances = gallery.directions(rows), gallery.total_variances(rows)
        codes = gallery.label_codes(rows)
        for row, stored in enumerate(gallery.items(rows)):
            i = position[stored.id]
            norm = np.linalg.norm(embeddings.mean[i])
            np.testing.assert_allclose(directions[row], embeddings.mean[i] / norm, atol=1e-6)
            expected = embeddings.variance[i].sum() / norm**2
            np.testing.assert_allclose(total_variances[row], expected, rtol=self.variance_error)
            relative = embeddings.variance[i] / norm**2
            stored_variances = gallery.variances(rows)[row]
            np.testing.assert_allclose(stored_variances, relative, rtol=self.variance_error)
            assert gallery.row(stored.id) == row
            assert (stored.label, stored.metadata) == (items[i].label, items[i].metadata)
            assert (gallery.labels[codes[row]] if codes[row] >= 0 else None) == items[i].label
            assert gallery.item(stored.id) == stored
            assert gallery.thumbnail(stored.id) == items[i].thumbnail

    def test_equal_items_come_in_the_order_of_their_ids(self, build: BuildGallery) -> None:
        one = random_embeddings(1, 7, seed=3)
        many = Embeddings(
            *(np.repeat(part, 30, axis=0) for part in (one.mean, one.variance, one.features))
        )
        gallery = build(many, new_items(30))
        direction = gallery.directions(np.array([0]))
        ids = [item.id for item in gallery.items(gallery.candidates(direction, 30).rows[0])]
        assert ids == sorted(ids)

    def test_a_query_is_answered_the_same_alone_and_among_others(self, build: BuildGallery) -> None:
        gallery = build(random_embeddings(70, 8, seed=4), new_items(70))
        queries = random_embeddings(50, 8, seed=5).mean
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        together = gallery.candidates(queries, 9)
        for i in (0, 17, 49):
            alone = gallery.candidates(queries[i : i + 1], 9)
            np.testing.assert_array_equal(alone.rows[0], together.rows[i])
            np.testing.assert_array_equal(alone.similarities[0], together.similarities[i])

    def test_only_allowed_rows_are_found_and_no_fewer(self, build: BuildGallery) -> None:
        gallery = build(random_embeddings(60, 4, seed=6), new_items(60))
        allowed = np.zeros(60, dtype=bool)
        allowed[[3, 17, 18, 44, 59]] = True
        query = gallery.directions(np.array([5, 6]))
        rows = MaskedRows(allowed)
        assert set(gallery.candidates(query, 5, rows).rows[0]) == {3, 17, 18, 44, 59}
        assert gallery.candidates(query, 50, rows).rows.shape == (2, 5)

    def test_a_filter_names_the_rows_that_it_lets_through(self, build: BuildGallery) -> None:
        items = new_items(60)
        gallery = build(random_embeddings(60, 4, seed=9), items)
        allowed = gallery.matching(parse_filter({"label": "b", "place": {"gte": 20}}))
        named = {item.id for i, item in enumerate(items) if item.label == "b" and i >= 20}
        assert {item.id for item in gallery.items(allowed.rows())} == named
        rows = gallery.candidates(gallery.directions(np.array([3])), 60, allowed).rows[0]
        assert {item.id for item in gallery.items(rows)} == named

    def test_a_filter_that_lets_nothing_through_finds_nothing(self, build: BuildGallery) -> None:
        gallery = build(random_embeddings(9, 4, seed=9), new_items(9))
        allowed = gallery.matching(parse_filter({"label": "no such label"}))
        assert gallery.candidates(gallery.directions(np.array([3])), 5, allowed).rows.size == 0

    def test_more_than_all_is_all(self, build: BuildGallery) -> None:
        gallery = build(random_embeddings(3, 4, seed=7), new_items(3))
        assert gallery.candidates(gallery.directions(np.array([1])), 10).rows.shape == (1, 3)

    def test_an_unknown_id_is_named(self, build: BuildGallery) -> None:
        gallery = build(random_embeddings(3, 4, seed=8), new_items(3))
        with pytest.raises(ItemNotFound, match="no-such-item"):
            gallery.item("no-such-item")
        with pytest.raises(ItemNotFound, match="no-such-item"):
            gallery.thumbnail("no-such-item")
        with pytest.raises(ItemNotFound, match="no-such-item"):
            gallery.row("no-such-item")
        with pytest.raises(ItemNotFound, match="no-such-item"):
            gallery.preview("no-such-item")

    @pytest.mark.parametrize("limit", [1, 4, 10, 11])
    def test_pages_are_all_items_by_id_each_once(self, build: BuildGallery, limit: int) -> None:
        gallery = build(random_embeddings(10, 4, seed=10), new_items(10))
        pages: list[list[str]] = []
        rows = gallery.page(None, limit)
        while rows.size and len(pages) < 10:
            pages.append([item.id for item in gallery.items(rows)])
            rows = gallery.page(int(rows[-1]), limit)
        assert [item_id for page in pages for item_id in page] == sorted(
            item.id for item in new_items(10)
        )
        assert rows.size == 0
        assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
        assert len(pages[-1]) <= limit

    def test_rows_may_have_any_shape(self, build: BuildGallery) -> None:
        """Of a batch of queries those of each, for example."""
        gallery = build(random_embeddings(10, 4, seed=10), new_items(10))
        rows = np.array([[3, 1, 9], [0, 3, 3]])
        for of in (
            gallery.directions,
            gallery.variances,
            gallery.total_variances,
            gallery.label_codes,
        ):
            found = of(rows)
            assert found.shape == (2, 3, *of(rows[0])[0].shape)
            for place in np.ndindex(2, 3):
                np.testing.assert_array_equal(found[place], of(rows[place][None])[0])

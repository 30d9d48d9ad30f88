from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.errors import BundleMismatch
from model_store.gallery import FaissGallery, NewItem, write_faiss_gallery
from tests.laws.gallery_laws import BuildGallery, GalleryLaws, new_items, random_embeddings


@pytest.fixture
def build(tmp_path: Path) -> BuildGallery:
    def make(embeddings: Embeddings, items: Sequence[NewItem]) -> FaissGallery:
        write_faiss_gallery(tmp_path, embeddings, items, "the-encoder")
        return FaissGallery(tmp_path)

    return make


class TestFaissGallery(GalleryLaws):
    def test_the_order_of_arrival_does_not_change_a_byte(self, tmp_path: Path) -> None:
        embeddings, items = random_embeddings(20, 4, seed=0), new_items(20)
        shuffled = np.random.default_rng(1).permutation(20)
        other = Embeddings(
            *(
                part[shuffled]
                for part in (embeddings.mean, embeddings.variance, embeddings.features)
            )
        )
        for name, rows, parts in (("a", range(20), embeddings), ("b", shuffled, other)):
            (tmp_path / name).mkdir()
            write_faiss_gallery(tmp_path / name, parts, [items[i] for i in rows], "e")
        for path in (tmp_path / "a").iterdir():
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name

    def test_the_encoder_is_remembered(self, build: BuildGallery) -> None:
        gallery = build(random_embeddings(2, 3, seed=0), new_items(2))
        assert gallery.encoder_fingerprint == "the-encoder"

    def test_threads_may_share_it(self, build: BuildGallery) -> None:
        gallery = build(random_embeddings(50, 4, seed=0), new_items(50))
        with ThreadPoolExecutor(4) as pool:
            ids = list(pool.map(lambda row: gallery.items(np.array([row]))[0].id, range(50)))
        assert ids == sorted(item.id for item in new_items(50))

    def test_a_search_leaves_the_number_of_threads_as_it_was(self, build: BuildGallery) -> None:
        """Torch shares it, and trains another model with another number of threads."""
        gallery = build(random_embeddings(50, 4, seed=0), new_items(50))
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(3)
        try:
            for n_queries in (1, 2):
                gallery.candidates(np.eye(4, dtype=np.float32)[:n_queries], 5)
                assert faiss.omp_get_max_threads() == 3
        finally:
            faiss.omp_set_num_threads(before)

    def test_files_of_different_length_are_refused(
        self, build: BuildGallery, tmp_path: Path
    ) -> None:
        build(random_embeddings(5, 3, seed=0), new_items(5))
        np.save(tmp_path / "norms.npy", np.ones(4, dtype=np.float32))
        with pytest.raises(BundleMismatch, match=r"'norms.npy': 4"):
            FaissGallery(tmp_path)

    def test_repeated_ids_are_refused(self, tmp_path: Path) -> None:
        twice = [new_items(2)[0]] * 2
        with pytest.raises(ValueError, match="ids repeat"):
            write_faiss_gallery(tmp_path, random_embeddings(2, 3, seed=0), twice, "e")

"""The benchmarks of galleries make what they say, and measure it against exact search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_store.gallery import FaissGallery
from tests.benchmarks import bench_gallery, bench_ten_million
from tests.benchmarks.bench_gallery import Nearest
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.support.live_bundles import published

DIM, N_REAL, N_MADE = 16, 1_500, 4_000


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return published(tmp_path, random_embeddings(N_REAL, DIM, seed=0), new_items(N_REAL))


def test_the_nearest_of_some_at_a_time_are_those_of_all() -> None:
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((500, 8), dtype=np.float32)
    queries = generator.standard_normal((20, 8), dtype=np.float32)
    nearest = Nearest(queries, 10)
    for start in (0, 3, 4, 400):
        stop = {0: 3, 3: 4, 4: 400, 400: 500}[start]
        nearest.add(rows[start:stop], np.arange(start, stop))
    expected = np.argsort(-(queries @ rows.T), axis=1)[:, :10]
    np.testing.assert_array_equal(nearest.rows, expected)


def test_a_gallery_is_made_of_real_items_and_moved_copies(bundle: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    bench_gallery.build(bundle, made, N_MADE, n_queries=100)
    gallery = FaissGallery(made)
    assert gallery.n_items == N_MADE
    assert [one.id for one in gallery.items(np.array([0, N_MADE - 1]))] == ["00000000", "00003999"]
    queries, truth = np.load(made / "queries.npy"), np.load(made / "truth.npy")
    every = gallery.directions(np.arange(N_MADE))
    np.testing.assert_array_equal(truth, np.argsort(-(queries @ every.T), axis=1)[:, :10])
    real, copies = every[: N_REAL - 100], every[N_REAL - 100 :][: N_REAL - 100]
    own = (real * copies).sum(axis=1)
    assert own.min() > 0.5
    assert own.max() < 1
    assert (np.load(made / "build_s.npy") > 0).all()


@pytest.mark.process
def test_every_step_of_ten_million_runs_with_few(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_ten_million, "WORK", tmp_path / "work")
    monkeypatch.setattr(bench_ten_million, "N_QUERIES", 60)
    monkeypatch.setattr(bench_ten_million, "N_SLOW", 20)
    monkeypatch.setattr(bench_ten_million, "N_PUT", 5)
    found = {
        name: value
        for step in bench_ten_million.STEPS
        for name, value in bench_ten_million.run_step(step, N_MADE, bundle).items()
    }
    assert found["recall_at_10"] == found["filter_wide_recall_at_10"] == 1  # so few: exact
    assert found["compaction_recall_written_down"] == found["command_recall_written_down"] == 1
    timed = ("build_s", "uncertain_ms", "put_ms", "live_changed_ms", "compaction_s", "command_s")
    assert all(found[name] > 0 for name in timed)
    assert not (tmp_path / "work" / str(N_MADE) / "bundles").exists()
    made = tmp_path / "work" / str(N_MADE)
    growth = bench_ten_million.grown(made, made)
    assert growth["recall_at_10_1e7"] == 1
    of = growth["growth_most_ms"] / growth["growth_least_ms"]
    assert growth["search_growth_1e6_1e7"] == pytest.approx(of)

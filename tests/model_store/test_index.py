"""Approximate indexes: chosen by arithmetic, measured, deterministic, and never short of items."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.decision.calibration import search_settings
from model_store.encoder.contract import Embeddings
from model_store.errors import BundleMismatch, ConfigError
from model_store.gallery import (
    FaissGallery,
    IndexReport,
    IndexSettings,
    MaskedRows,
    NewItem,
    Thumbnail,
    write_faiss_gallery,
)
from model_store.gallery.files.gallery import HALF_ROUNDING
from model_store.gallery.index import build
from model_store.gallery.index import build as index_build
from model_store.gallery.index import search as index_search
from model_store.gallery.index.build import EFFORTS, FETCHED, parameters_of, selector, set_effort
from model_store.gallery.index.plan import EXACT_BYTES, IndexKind, lists_for, plan_index
from tests.laws.gallery_laws import BuildGallery, GalleryLaws, new_items, random_embeddings

APPROXIMATE: list[IndexKind] = [kind for kind in get_args(IndexKind) if kind != "flat"]
N, DIM = 3_000, 16
MIB = 2**20


def clustered(n: int = N, dim: int = DIM, seed: int = 0) -> Embeddings:
    """Embeddings around sixty centres, as those of an encoder are."""
    generator = np.random.default_rng(seed)
    centres = 3 * generator.standard_normal((60, dim))
    mean = centres[generator.integers(0, 60, n)] + generator.standard_normal((n, dim))
    variance = generator.uniform(1e-4, 2, (n, dim)) * generator.uniform(1e-3, 1e3, (n, 1))
    return Embeddings(
        mean.astype(np.float32), variance.astype(np.float32), np.empty((n, 0), np.float32)
    )


def plain_items(n: int = N) -> list[NewItem]:
    picture = Thumbnail(b"", "image/png")
    return [NewItem(f"{i:05d}", "abc"[i % 3], {"place": i}, picture) for i in range(n)]


def unit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    directions: NDArray[np.float32] = values / np.linalg.norm(values, axis=-1, keepdims=True)
    return directions


@pytest.fixture(scope="module", params=APPROXIMATE)
def gallery(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> FaissGallery:
    directory = tmp_path_factory.mktemp(request.param)
    settings = IndexSettings(kind=request.param, min_recall=0.97)
    write_faiss_gallery(directory, clustered(), plain_items(), "e", settings)
    return FaissGallery(directory)


@pytest.mark.parametrize(
    ("n_items", "dim", "budget", "factory"),
    [
        (60_000, 128, 64 * MIB, "Flat"),
        (100_000, 128, 4096 * MIB, "IVF512,SQ8"),
        (1_000_000, 128, 4096 * MIB, "IVF2048,SQ8"),
        (1_000_000, 128, 100 * MIB, "IVF2048,PQ64"),
        (1_000_000, 128, 32 * MIB, "IVF2048,PQ16"),
        (60_000, 128, 16 * MIB, "IVF512,SQ8"),
    ],
)
def test_size_and_budget_choose(n_items: int, dim: int, budget: int, factory: str) -> None:
    plan = plan_index(n_items, dim, IndexSettings(memory_budget_bytes=budget))
    assert plan.factory == factory
    assert plan.n_bytes <= budget


@pytest.mark.parametrize("kind", get_args(IndexKind))
def test_a_budget_of_just_its_bytes_is_enough(kind: IndexKind) -> None:
    least = plan_index(10_000, 7, IndexSettings(kind)).n_bytes
    fits = plan_index(10_000, 7, IndexSettings(kind, memory_budget_bytes=least))
    assert (fits.kind, fits.n_bytes) == (kind, least)
    with pytest.raises(ConfigError, match=f"at least {least:,} bytes"):
        plan_index(10_000, 7, IndexSettings(kind, memory_budget_bytes=least - 1))


def test_lists_are_a_power_of_two_near_twice_the_root() -> None:
    found = [lists_for(n) for n in (1, 3, 4, 16, 10_000, 1_000_000, 10_000_000)]
    assert found == [1, 1, 4, 8, 256, 2048, 8192]


@pytest.mark.parametrize(("dim", "width"), [(7, 1), (6, 2), (12, 4), (24, 8)])
def test_codes_are_of_as_many_dimensions_as_divide_an_embedding(dim: int, width: int) -> None:
    """Coarser ones take less memory, so that the least budget gets the coarsest."""
    budgets = np.arange(3_000, 300_000, 1_000)
    plans = []
    for budget in budgets.tolist():
        with suppress(ConfigError):
            settings = IndexSettings("ivf_pq", memory_budget_bytes=budget)
            plans.append(plan_index(1_000, dim, settings).factory.partition("PQ")[2])
    assert plans[0] == str(dim // width)
    assert plans[-1] == str(dim // min(width, 2))


def test_what_fits_nowhere_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ConfigError, match=r"takes at least 25,1\d\d,\d\d\d bytes of memory"):
        plan_index(1_000_000, 128, IndexSettings(memory_budget_bytes=MIB))


@pytest.mark.parametrize("kind", get_args(IndexKind))
def test_the_arithmetic_is_that_of_the_file(kind: IndexKind, tmp_path: Path) -> None:
    write_faiss_gallery(
        tmp_path, clustered(), plain_items(), "e", IndexSettings(kind, min_recall=0.9)
    )
    written = (tmp_path / index_search.INDEX_FILE).stat().st_size
    assert written == pytest.approx(IndexReport.load(tmp_path).n_bytes, rel=0.05)


def test_the_recall_that_is_written_down_is_what_new_queries_see(gallery: FaissGallery) -> None:
    queries = unit(clustered(200, seed=0).mean + 0.3 * clustered(200, seed=1).mean).astype("f4")
    exact = np.argsort(-queries @ gallery.directions(np.arange(N)).T, axis=1)[:, :10]
    found = gallery.candidates(queries, 10).rows
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact, strict=True)])
    assert gallery.index.recall_at_10 >= 0.97
    assert recall >= 0.93
    assert gallery.index.n_queries == index_build.N_QUERIES


def test_a_search_compares_the_query_with_a_part_of_the_items(gallery: FaissGallery) -> None:
    is_graph = gallery.index.kind == "hnsw"
    counted = faiss.cvar.hnsw_stats if is_graph else faiss.cvar.indexIVF_stats
    counted.reset()
    gallery.candidates(unit(clustered(1, seed=2).mean).astype("f4"), 10)
    assert 0 < counted.ndis < N


def test_recall_below_what_is_asked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "FETCHED", 10)  # codes alone decide
    settings = IndexSettings("ivf_pq", min_recall=1.0)
    with pytest.raises(ConfigError, match=r"of the ten nearest items, wanted 1\.0"):
        write_faiss_gallery(tmp_path, clustered(), plain_items(), "e", settings)


def test_product_quantisation_wants_an_item_for_each_code(tmp_path: Path) -> None:
    settings = IndexSettings("ivf_pq", min_recall=0.1)
    write_faiss_gallery(tmp_path, clustered(256), plain_items(256), "e", settings)
    assert FaissGallery(tmp_path).n_items == 256
    (tmp_path / "one fewer").mkdir()
    with pytest.raises(ConfigError, match=r"needs at least 256 items; there are 255\."):
        write_faiss_gallery(tmp_path / "one fewer", clustered(255), plain_items(255), "e", settings)


def test_a_query_of_an_approximate_index_is_answered_alone_as_among_others(
    gallery: FaissGallery,
) -> None:
    queries = unit(clustered(64, seed=3).mean).astype("f4")
    together = gallery.candidates(queries, 25)
    for i in (0, 31, 63):
        alone = gallery.candidates(queries[i : i + 1], 25)
        np.testing.assert_array_equal(alone.rows[0], together.rows[i])
        np.testing.assert_array_equal(alone.similarities[0], together.similarities[i])


@pytest.mark.parametrize("exact_rows", [0, index_search.EXACT_ROWS])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 1.0])
def test_never_fewer_than_there_are(
    gallery: FaissGallery, share: float, exact_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_search, "EXACT_ROWS", exact_rows)
    allowed = np.random.default_rng(4).random(N) < share
    allowed[7] = True
    queries = unit(clustered(5, seed=5).mean).astype("f4")
    for n in (1, 30, N):
        found = gallery.candidates(queries, n, MaskedRows(allowed))
        assert found.rows.shape == (5, min(n, allowed.sum()))
        assert allowed[found.rows].all()
        assert all(len(set(rows)) == len(rows) for rows in found.rows)


def test_few_allowed_rows_are_searched_exactly(gallery: FaissGallery) -> None:
    allowed = np.random.default_rng(6).random(N) < 0.1
    [query] = unit(clustered(1, seed=7).mean).astype("f4")
    rows = np.flatnonzero(allowed)
    exact = rows[np.argsort(-gallery.directions(rows) @ query)[:20]]
    np.testing.assert_array_equal(
        gallery.candidates(query[None], 20, MaskedRows(allowed)).rows[0], exact
    )


def test_similarities_are_those_of_the_whole_directions(gallery: FaissGallery) -> None:
    queries = unit(clustered(3, seed=8).mean).astype("f4")
    found = gallery.candidates(queries, 12)
    stored = unit(clustered().mean)
    for query, rows, similarities in zip(queries, found.rows, found.similarities, strict=True):
        np.testing.assert_allclose(similarities, stored[rows] @ query, atol=1e-6)


def test_variances_are_rounded_to_eleven_bits(gallery: FaissGallery) -> None:
    embeddings, rows = clustered(), np.arange(N)
    squared_norms = (embeddings.mean.astype(np.float64) ** 2).sum(axis=1, keepdims=True)
    relative = embeddings.variance / squared_norms
    tiny = relative.max(axis=1, keepdims=True) * 2.0**-24
    error = np.abs(gallery.variances(rows) - relative)
    assert (error <= np.maximum(relative * (HALF_ROUNDING + 1e-6), tiny)).all()
    np.testing.assert_allclose(
        gallery.total_variances(rows), relative.sum(axis=1), rtol=HALF_ROUNDING + 1e-6
    )


def test_settings_of_a_calibration_name_index_and_effort(gallery: FaissGallery) -> None:
    [(name, effort)] = gallery.index.parameters.items()
    assert search_settings(gallery)["index"] == f"{gallery.index.factory},{name}={effort}"


def test_labels_of_another_length_are_refused(gallery: FaissGallery, tmp_path: Path) -> None:
    write_faiss_gallery(tmp_path, random_embeddings(5, 3, 0), new_items(5), "e")
    np.save(tmp_path / "labels.npy", np.zeros(4, dtype=np.int32))
    with pytest.raises(BundleMismatch, match=r"'labels.npy': 4"):
        FaissGallery(tmp_path)


BUILD = """
import sys; from pathlib import Path
from tests.model_store.test_index import (
    APPROXIMATE, IndexSettings, clustered, plain_items, write_faiss_gallery
)
for kind in APPROXIMATE:
    directory = Path(sys.argv[1]) / kind
    directory.mkdir(parents=True)
    settings = IndexSettings(kind, min_recall=0.9)
    write_faiss_gallery(directory, clustered(), plain_items(), "e", settings)
"""


@pytest.mark.process
def test_same_input_same_bytes_with_any_number_of_threads(tmp_path: Path) -> None:
    for threads in ("1", "2"):
        environment = {"OMP_NUM_THREADS": threads, "PYTHONPATH": "."}
        command = [sys.executable, "-c", BUILD, str(tmp_path / threads)]
        subprocess.run(command, check=True, env=environment)
    files = sorted(path for path in (tmp_path / "1").rglob("*.*"))
    assert len(files) == 10 * len(APPROXIMATE)
    for path in files:
        other = tmp_path / "2" / path.relative_to(tmp_path / "1")
        assert path.read_bytes() == other.read_bytes(), path.name


@pytest.mark.parametrize("kind", ["hnsw", "ivf_sq8"])
class TestApproximateGalleryThatLooksEverywhere(GalleryLaws):
    """The laws are of exact answers: every list is read, and the codes are ranked again."""

    variance_error = HALF_ROUNDING + 1e-6

    @pytest.fixture
    def build(
        self, tmp_path: Path, kind: IndexKind, monkeypatch: pytest.MonkeyPatch
    ) -> BuildGallery:
        monkeypatch.setattr(index_build, "EFFORTS", [1024] if kind == "hnsw" else [])

        def make(embeddings: Embeddings, items: Sequence[NewItem]) -> FaissGallery:
            write_faiss_gallery(tmp_path, embeddings, items, "the-encoder", IndexSettings(kind))
            return FaissGallery(tmp_path)

        return make


def test_a_search_leaves_the_number_of_threads_as_it_was(gallery: FaissGallery) -> None:
    before = faiss.omp_get_max_threads()
    gallery.candidates(unit(clustered(2, seed=9).mean).astype("f4"), 5)
    assert faiss.omp_get_max_threads() == before


def test_an_index_that_may_just_be_searched_exactly_is() -> None:
    dim = 128
    just = EXACT_BYTES // (4 * dim)
    kinds = [plan_index(n_items, dim, IndexSettings()).kind for n_items in (just, just + 1)]
    assert kinds == ["flat", "ivf_sq8"]


@pytest.mark.parametrize("asked", [5, FETCHED + 1])
@pytest.mark.parametrize(("every", "wanted"), [(1, 6), (2, 12), (4, 24)])
def test_of_few_allowed_rows_more_lists_are_read(every: int, wanted: int, asked: int) -> None:
    """As many allowed rows are looked at as there would be without a filter."""
    efforts: list[int] = []

    def search(query: object, n: int, fetched: int, effort: int, selector: object) -> object:
        efforts.append(effort)
        assert fetched == min(max(FETCHED, asked), 400 // every)
        return np.arange(n)

    index: Any = SimpleNamespace(_n_items=400, _effort=6, _search=search)
    mask = np.arange(400) % every == 0
    index_search.ApproximateIndex._filtered_first(index, np.zeros((1, 2), np.float32), asked, mask)
    assert efforts == [wanted]


@pytest.mark.parametrize(("more", "first"), [(0, True), (-1, False)])
def test_lists_are_read_before_the_filter_from_a_number_of_rows_on(more: int, first: bool) -> None:
    n_allowed = 2 * index_search.EXACT_ROWS + more
    n_items = 4 * index_search.EXACT_ROWS
    index: Any = SimpleNamespace(_n_items=n_items, _knob="nprobe")
    allowed: Any = SimpleNamespace(at_most=n_allowed, share=n_allowed / n_items)
    assert index_search.ApproximateIndex._searches_first(index, allowed) is first


@pytest.mark.parametrize(("share", "effort"), [(1.0, 3), (0.5, 6), (0.1, 8)])
def test_more_lists_are_read_before_a_filter_but_at_most_all(share: float, effort: int) -> None:
    efforts: list[int] = []
    index: Any = SimpleNamespace(
        _n_items=10,
        _effort=3,
        _most=8,
        _parameters=lambda effort, _: efforts.append(effort),
        _index=SimpleNamespace(search=lambda *_, **__: (None, np.array([[0, -1]]))),
    )
    allowed: Any = SimpleNamespace(share=share, at=lambda rows: rows >= 0)
    index_search.ApproximateIndex._found_first(index, np.zeros(2, np.float32), 1, allowed)
    assert efforts == [effort]


def test_stored_parameters_are_those_of_the_usual_search_without_a_filter() -> None:
    ivf = faiss.index_factory(4, "IVF4,SQ8", faiss.METRIC_INNER_PRODUCT)
    index: Any = SimpleNamespace(_index=ivf, _effort=2)
    of = index_search.ApproximateIndex._parameters
    assert of(index, 2, None) is None
    assert of(index, 3, None).nprobe == 3
    assert of(index, 2, selector(np.array([True, False]))).sel is not None


def test_what_a_search_did_not_find_is_compared_exactly() -> None:
    index: Any = SimpleNamespace(
        _n_items=400,
        _effort=6,
        _search=lambda query, *_: None if query[0] else np.array([1]),
        _exact=lambda query, n, every: every[::100],
    )
    queries = np.array([[0.0], [1.0]], np.float32)
    of = index_search.ApproximateIndex._filtered_first
    assert [rows.tolist() for rows in of(index, queries, 1, None)] == [[1], [0, 100, 200, 300]]
    mask = np.arange(400) % 2 == 1
    assert [rows.tolist() for rows in of(index, queries, 1, mask)] == [[1], [1, 201]]


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_of_compared_rows_as_many_as_are_asked_for_are_the_nearest(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_search, "_AT_ONCE", at_once)
    generator = np.random.default_rng(0)
    index = object.__new__(index_search.ApproximateIndex)
    index.directions = generator.standard_normal((12, 3)).astype(np.float32)
    queries, rows = index.directions[:2] + 1, np.array([0, 3, 4, 7, 8, 11])
    for n in range(1, 8):
        for query, found in zip(queries, index._compared(queries, n, rows), strict=True):
            nearest = rows[np.argsort(-index.directions[rows] @ query)[:n]]
            assert sorted(found.tolist()) == sorted(nearest.tolist())


@pytest.mark.parametrize("knob", ["nprobe", "efSearch"])
def test_only_lists_are_searched_before_the_filter(knob: str) -> None:
    index: Any = SimpleNamespace(_n_items=10**6, _knob=knob)
    for share in (0.9, 0.001):
        allowed: Any = SimpleNamespace(at_most=int(share * 10**6), share=share)
        first = index_search.ApproximateIndex._searches_first(index, allowed)
        assert first == (knob == "nprobe" and share == 0.9)


@pytest.mark.parametrize(("factory", "name"), [("HNSW8,SQ8", "efSearch"), ("IVF4,SQ8", "nprobe")])
def test_the_effort_of_a_search_is_set_by_the_name_that_the_index_has_for_it(
    factory: str, name: str
) -> None:
    """FAISS takes the parameters of another index, and makes nothing of them."""
    index = faiss.index_factory(4, factory, faiss.METRIC_INNER_PRODUCT)
    set_effort(index, 3)
    assert getattr(index.hnsw if name == "efSearch" else index, name) == 3
    assert getattr(parameters_of(index, 7), name) == 7
    assert parameters_of(index, 7).sel is None
    assert parameters_of(index, 7, selector(np.array([True, False]))).sel is not None


@pytest.mark.parametrize("n_lists", [1, 4, 5, 10_000])
def test_the_efforts_that_are_tried_grow_and_end_with_every_list(n_lists: int) -> None:
    efforts = list(index_build._efforts(SimpleNamespace(nlist=n_lists)))
    assert efforts == sorted(set(efforts))
    assert efforts[-1] == n_lists
    assert set(efforts[:-1]) == {effort for effort in EFFORTS if effort < n_lists}


def test_a_recall_of_just_what_is_asked_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    directions = unit(clustered(60).mean)
    index = faiss.index_factory(DIM, "HNSW8,SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(directions)
    index.add(directions)
    monkeypatch.setattr(index_build, "share_found", lambda *_: 0.9)
    tuned = index_build._tuned(
        index,
        directions,
        SimpleNamespace(factory=""),  # type: ignore[arg-type]
        IndexSettings(min_recall=0.9),
        np.random.default_rng(0),
    )
    assert tuned == (EFFORTS[0], 0.9, 60)


@pytest.mark.parametrize(("exact_rows", "plan"), [(300, "exact"), (299, "filter_first")])
@pytest.mark.parametrize("estimated", [300, N])
def test_so_many_allowed_rows_are_compared_each_and_one_more_are_searched(
    gallery: FaissGallery,
    exact_rows: int,
    plan: str,
    estimated: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether their number is known at first, or only once they were looked up."""
    monkeypatch.setattr(index_search, "EXACT_ROWS", exact_rows)
    allowed = MaskedRows(np.arange(N) % 10 == 0)
    allowed.at_most = estimated
    queries = unit(clustered(1, seed=7).mean).astype("f4")
    assert gallery.candidates(queries, 5, allowed).plan == plan


@pytest.mark.parametrize("kind", ["at_most", "share"])
def test_lists_are_read_before_the_filter_from_a_share_on(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_search, "SEARCH_FIRST_SHARE", 0.5)
    n = 8 * index_search.EXACT_ROWS
    index: Any = SimpleNamespace(_n_items=n, _knob="nprobe")
    for fewer in (0, 1):
        asked = {"at_most": n // 2, "share": 0.5}
        asked[kind] -= fewer if kind == "at_most" else fewer / n
        allowed: Any = SimpleNamespace(**asked)
        first = index_search.ApproximateIndex._searches_first(index, allowed)
        assert first == (fewer == 0)


@pytest.mark.parametrize("found", [4, 5, 6])
def test_a_search_before_the_filter_needs_as_many_as_are_asked_for(found: int) -> None:
    """Where the lists that are read hold no more; else as many as are fetched without a filter."""
    near, asked = np.arange(10_000), list[int]()

    def search(query: object, n: int, params: object) -> tuple[None, NDArray[np.int64]]:
        asked.append(n)
        return None, np.where(np.arange(n) < len(near), near[:n], -1)[None]

    index: Any = SimpleNamespace(
        _n_items=len(near),
        _effort=1,
        _most=8,
        _parameters=lambda *_: None,
        _index=SimpleNamespace(search=search),
    )
    of = index_search.ApproximateIndex._found_first
    query, allowed = np.zeros(2, np.float32), MaskedRows(np.ones(len(near), dtype=np.bool_))
    rows = of(index, query, 5, allowed)
    np.testing.assert_array_equal(rows, np.arange(FETCHED))
    np.testing.assert_array_equal(of(index, query, 2_500, allowed), np.arange(2_500))
    assert of(index, query, 10_000, allowed) is not None
    assert asked == [257, 2_700, 10_000]  # four standard deviations more, and at most all
    near = np.r_[np.arange(found), np.full(10_000, -1)]
    rows = of(index, query, 5, allowed)
    assert (rows is None) == (found < 5)
    assert rows is None or rows.tolist() == list(range(found))


@pytest.mark.parametrize(("held", "efforts"), [(3, [2]), (2, [2, 4, 5])])
def test_a_search_is_widened_until_it_finds_as_many_as_are_asked_for(
    held: int, efforts: list[int]
) -> None:
    tried: list[int] = []

    def search(query: object, n: int, params: object) -> tuple[None, NDArray[np.int64]]:
        return None, np.array([[*range(held), -1, -1]])

    index: Any = SimpleNamespace(
        _most=5,
        _parameters=lambda effort, _: tried.append(effort),
        _index=SimpleNamespace(search=search),
    )
    query = np.zeros(2, np.float32)
    rows = index_search.ApproximateIndex._search(index, query, 3, 10, 2, None)
    assert (None if rows is None else rows.tolist()) == ([0, 1, 2] if held == 3 else None)
    assert tried == efforts


def test_queries_lie_between_neighbours_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row is a neighbour as any other, and who has none stays where it is."""
    directions = unit(clustered(12).mean)
    asked: list[Any] = []

    def searched(near: list[int], items: Any, n: int, params: object) -> tuple[None, Any]:
        asked.append((n, params))
        return None, np.tile(near, (len(items), 1))[:, :n]

    monkeypatch.setattr(index_build, "set_effort", lambda _, effort: asked.append(effort))
    monkeypatch.setattr(index_build, "NEIGHBOURS_AMONG", 12)
    for near in ([0, 1, 1], [-1, -1, -1], [-1, 5, 5]):
        usual = index_build._NEIGHBOURHOOD_EFFORT
        for fetched, effort in ((13, EFFORTS[-1]), (12, EFFORTS[-1]), (11, usual)):
            monkeypatch.setattr(index_build, "FETCHED", fetched)
            index = SimpleNamespace(search=partial(searched, near))
            found = index_build._queries(index, directions, np.random.default_rng(0))
            assert asked[-2:] == [effort, (min(fetched, 12), None)]
            for row, (item, query) in enumerate(zip(directions, found, strict=True)):
                there = directions[[row if one < 0 else one for one in near]]
                wanted = [unit(item + one - other) for one in there for other in there]
                assert min(np.abs(query - one).max() for one in wanted) < 1e-6


@pytest.mark.parametrize("n_lists", [index_build._NEIGHBOURHOOD_EFFORT + 1, 10_000])
def test_so_many_queries_are_made_from_neighbours_among_so_many_items(
    monkeypatch: pytest.MonkeyPatch, n_lists: int
) -> None:
    directions = unit(clustered(30).mean)
    for name, value in (("NEIGHBOURS_AMONG", 29), ("N_QUERIES", 7), ("FETCHED", 5)):
        monkeypatch.setattr(index_build, name, value)
    efforts: list[int] = []

    def parameters(_: object, effort: int, mask: NDArray[np.bool_]) -> None:
        assert mask.sum() == 29
        efforts.append(effort)

    monkeypatch.setattr(index_build, "set_effort", lambda _, effort: efforts.append(effort))
    monkeypatch.setattr(index_build, "selector", lambda mask: mask)
    monkeypatch.setattr(index_build, "parameters_of", parameters)

    def search(items: NDArray[np.float32], n: int, params: object) -> tuple[None, Any]:
        return None, np.zeros((len(items), n), dtype=np.int64)

    index = SimpleNamespace(search=search, nlist=n_lists)
    found = index_build._queries(index, directions, np.random.default_rng(0))
    assert found.shape == (7, directions.shape[1])
    usual = index_build._NEIGHBOURHOOD_EFFORT
    assert efforts == [usual, min(2 * usual, n_lists)]


@pytest.mark.parametrize(("fetched", "n"), [(59, 59), (61, 60)])
def test_recall_is_measured_on_as_many_candidates_as_a_search_fetches(
    monkeypatch: pytest.MonkeyPatch, fetched: int, n: int
) -> None:
    directions, asked = unit(clustered(60).mean), list[int]()

    def search(queries: NDArray[np.float32], k: int) -> tuple[None, NDArray[np.int64]]:
        asked.append(k)
        return None, np.tile(np.arange(k), (len(queries), 1))

    monkeypatch.setattr(index_build, "FETCHED", fetched)
    monkeypatch.setattr(index_build, "set_effort", lambda *_: None)
    monkeypatch.setattr(index_build, "_queries", lambda *_: directions[:3])
    plan: Any = SimpleNamespace(factory="")
    settings = IndexSettings(min_recall=0)
    index = SimpleNamespace(search=search)
    index_build._tuned(index, directions, plan, settings, np.random.default_rng(0))
    assert asked == [n]


@pytest.mark.parametrize("n_items", [3, 9, 10, 11])
def test_tenth_similarity_of_fewer_items_is_the_lowest(n_items: int) -> None:
    directions = unit(clustered(n_items).mean)
    wanted = np.sort(directions @ directions[0])[::-1][: build.N_NEIGHBOURS][-1]
    assert build.tenth_similarity(directions, directions[:1]) == pytest.approx(wanted, abs=1e-6)


def test_an_item_as_near_as_the_tenth_is_one_of_the_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_TIE", 0.0)
    axes = np.eye(4, dtype=np.float32)
    every = [np.arange(4)]
    assert build.share_found(axes, axes[:1], every, np.zeros(1, np.float32)) == 1.0
    assert build.share_found(axes, axes[:1], every, np.ones(1, np.float32)) == 0.25


def test_recall_of_more_than_ten_equal_items_is_one() -> None:
    directions = np.ones((12, 1), dtype=np.float32)
    one = np.ones(1, dtype=np.float32)
    assert build.share_found(directions, directions[:1], [np.arange(12)], one) == 1.0


@pytest.mark.parametrize("allowed", [None, [0, 2, 3], []])
@pytest.mark.parametrize("n", [0, 2, 3, 4, 6, 7])
def test_exact_index_returns_the_nearest_allowed_rows(allowed: list[int] | None, n: int) -> None:
    flat = faiss.IndexFlatIP(1)
    flat.add(np.arange(6, dtype=np.float32)[:, None])
    mask = None if allowed is None else np.isin(np.arange(6), allowed)
    rows = None if mask is None else MaskedRows(mask)
    index, query = index_search.ExactIndex(flat), np.ones((1, 1), dtype=np.float32)
    [found], plan = index.nearest(query, n, rows)
    there = range(6) if allowed is None else allowed
    assert sorted(found.tolist(), reverse=True) == sorted(there, reverse=True)[:n]
    assert plan == "exact"


def test_exact_index_without_rows_finds_none() -> None:
    index = index_search.ExactIndex(faiss.IndexFlatIP(1))
    [found], _ = index.nearest(np.ones((1, 1), dtype=np.float32), 3, None)
    assert found.tolist() == []


def test_lists_are_many_from_a_number_on() -> None:
    for more in (-1, 0):
        index = SimpleNamespace(nlist=index_build.LEAST_LISTS + more)
        assert index_build.are_many(index) == (more == 0)
    assert not index_build.are_many(SimpleNamespace())


def test_a_search_that_finds_just_enough_is_not_repeated() -> None:
    asked: list[int] = []

    def searched(_: object, __: int, params: int) -> Any:
        asked.append(params)
        return None, np.array([[*range(params), *[-1] * (8 - params)]])

    index: Any = SimpleNamespace(
        _index=SimpleNamespace(search=searched), _most=8, _parameters=lambda effort, _: effort
    )
    query = np.zeros(1, np.float32)
    for n, efforts in ((2, [2]), (3, [2, 4]), (8, [2, 4, 8]), (9, [2, 4, 8])):
        asked.clear()
        rows = index_search.ApproximateIndex._search(index, query, n, 8, 2, None)
        assert (rows is None) == (n == 9)
        assert asked == efforts


def test_a_search_before_the_filter_that_finds_just_enough_will_do() -> None:
    """Enough are as many as are wanted, or of lists that hold no more, as many as are asked for."""
    near = np.array([[0, 1, 2, 3, -1, -1]])
    index: Any = SimpleNamespace(
        _n_items=6,
        _effort=1,
        _most=1,
        _index=SimpleNamespace(search=lambda *_, **__: (None, near)),
        _parameters=lambda *_: None,
    )
    allowed: Any = SimpleNamespace(share=1.0, at=lambda rows: rows > 0)
    found = index_search.ApproximateIndex._found_first
    for n, rows in ((3, [1, 2, 3]), (4, None)):
        few = found(index, np.zeros(1, np.float32), n, allowed)
        assert (None if few is None else few.tolist()) == rows


@pytest.mark.parametrize("n", [1, 3, 6])
def test_of_rows_that_are_compared_each_the_nearest_are_returned(n: int) -> None:
    index: Any = SimpleNamespace(directions=np.arange(12, dtype=np.float32)[:, None])
    rows = np.array([3, 11, 0, 7, 9, 2])
    found = index_search.ApproximateIndex._exact(index, np.ones(1, np.float32), n, rows)
    assert sorted(found.tolist(), reverse=True) == [11, 9, 7, 3, 2, 0][:n]


@pytest.mark.parametrize("kind", ["flat", "ivf_sq8"])
def test_open_index_that_refers_to_another_file_is_refused(tmp_path: Path, kind: IndexKind) -> None:
    """FAISS would open the file that an index names, wherever it is, to read and write."""
    vectors = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(8), 8, 4, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    elsewhere = tmp_path / "elsewhere"
    lists = faiss.InvertedListsPtrVector()
    lists.push_back(index.invlists)
    on_disk = faiss.OnDiskInvertedLists(4, index.code_size, str(elsewhere))
    on_disk.merge_from_multiple(lists.data(), 1)
    index.replace_invlists(on_disk, own=False)
    (tmp_path / "bundle").mkdir()
    faiss.write_index(index, str(tmp_path / "bundle" / index_search.INDEX_FILE))
    assert faiss.read_index(str(tmp_path / "bundle" / index_search.INDEX_FILE)).ntotal == 200
    np.save(tmp_path / "bundle" / index_search.DIRECTIONS_FILE, vectors)
    report = IndexReport(kind, "IVF4,Flat", {"nprobe": 4}, 1.0, 0, 0)
    with pytest.raises(BundleMismatch, match="refers to another file"):
        index_search.open_index(tmp_path / "bundle", report)

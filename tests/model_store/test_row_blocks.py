"""Directions of a file are read in blocks, and an index built of them is the same."""

from __future__ import annotations

import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from model_store import table
from model_store.gallery import IndexSettings
from model_store.gallery.index import build
from model_store.gallery.index.build import build_index, rows_at
from model_store.gallery.index.plan import IndexKind, plan_index
from model_store.table import RowFile, load_bytes, load_rows

N, DIM = 3_000, 16

LEARNS_LONG = pytest.param("ivf_pq", marks=pytest.mark.slow)


def directions(n: int = N, dim: int = DIM) -> NDArray[np.float32]:
    rows = np.random.default_rng(0).standard_normal((n, dim), dtype=np.float32)
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


@pytest.fixture
def mapped(tmp_path: Path) -> NDArray[np.float32]:
    np.save(tmp_path / "rows.npy", directions())
    found: NDArray[np.float32] = np.load(tmp_path / "rows.npy", mmap_mode="r")
    return found


@pytest.fixture(params=[1, 7, 1_000, 3_000, 65_536])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(build, "BLOCK_ROWS", request.param)
    return int(request.param)


def test_the_blocks_of_an_array_and_of_a_file_are_its_rows(
    mapped: NDArray[np.float32], block: int
) -> None:
    for rows in (directions(), mapped, mapped.copy()):
        blocks = list(build.row_blocks(rows))
        assert {len(one) for one in blocks[:-1]} <= {block}
        np.testing.assert_array_equal(np.concatenate(blocks), directions())


def test_rows_are_those_at_their_places(mapped: NDArray[np.float32], block: int) -> None:
    places = np.unique(np.random.default_rng(block).integers(0, N, 200))
    for rows in (directions(), mapped):
        np.testing.assert_array_equal(rows_at(rows, places), directions()[places])
        assert len(rows_at(rows, places[:0])) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what is mapped")
def test_what_was_read_of_a_file_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "BLOCK_ROWS", 8_192)
    np.save(tmp_path / "rows.npy", np.ones((500_000, DIM), np.float32))  # 30 MiB
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    before = mapped_kib()
    for one in build.row_blocks(rows):
        assert one.sum() == one.size
        assert mapped_kib() - before < 8 * 1024
    assert mapped_kib() - before < 2 * 1024
    rows.sum()
    assert mapped_kib() - before > 25 * 1024  # as which it would stay


def mapped_kib() -> int:
    """Pages of files that this process has in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssFile:")[2].split()[0])


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf_sq8", LEARNS_LONG])
def test_an_index_of_blocks_is_the_index_of_all(
    mapped: NDArray[np.float32], kind: IndexKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = IndexSettings(kind, min_recall=0.5)
    plan = plan_index(N, DIM, settings)
    whole, report = build_index(directions(), plan, settings)
    monkeypatch.setattr(build, "BLOCK_ROWS", 700)
    parts, of_parts = build_index(mapped, plan, settings)
    assert report == of_parts
    assert faiss.serialize_index(whole).tobytes() == faiss.serialize_index(parts).tobytes()


def test_recall_is_measured_block_by_block(mapped: NDArray[np.float32], block: int) -> None:
    queries = directions(20, DIM)[:, ::-1].copy()
    similarities = np.sort(queries @ directions().T, axis=1)
    tenth = build.tenth_similarity(mapped, queries)
    np.testing.assert_allclose(tenth, similarities[:, -10], atol=1e-6)
    nearest = np.argsort(-(queries @ directions().T), axis=1)
    found = [row[3:13] for row in nearest[:10]] + [np.append(row[:9], -1) for row in nearest[10:]]
    share = build.share_found(mapped, queries, found, tenth)
    assert share == pytest.approx((10 * 0.7 + 10 * 0.9) / 20)


def test_where_there_are_fewer_than_ten_all_are_wanted(block: int) -> None:
    rows, queries = directions(4), directions(2)
    tenth = build.tenth_similarity(rows, queries)
    np.testing.assert_allclose(tenth, (queries @ rows.T).min(axis=1), atol=1e-6)
    assert build.share_found(rows, queries, [np.arange(4), np.array([0, 1])], tenth) == 0.75


def test_queries_that_recall_is_measured_with_leave_the_crowd_of_an_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where copies crowd all neighbours of an item are copies of it; among fewer items, not all."""
    noise = np.random.default_rng(1).standard_normal((12_000, DIM), dtype=np.float32)
    rows = np.repeat(directions(40), 300, axis=0) + 0.01 * noise
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    settings = IndexSettings("ivf_sq8", min_recall=0.2)
    index, _ = build_index(rows, plan_index(len(rows), DIM, settings), settings)

    def nearest(limit: int) -> NDArray[np.float32]:
        monkeypatch.setattr(build, "NEIGHBOURS_AMONG", limit)
        queries = build._queries(index, rows, np.random.default_rng(0))
        found: NDArray[np.float32] = (queries @ rows.T).max(axis=1)
        return found

    assert np.median(nearest(12_000)) > 0.99
    assert np.median(nearest(1_200)) < 0.9


class TestVeryManyLists:
    """Learned and filled in two levels; here with few, as if they were very many."""

    @pytest.fixture(autouse=True)
    def _few_are_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(build, "LEAST_LISTS", 64)

    @pytest.mark.parametrize("kind", ["ivf_sq8", LEARNS_LONG])
    def test_nearly_as_much_is_found_and_the_same_bytes_are_made(
        self, mapped: NDArray[np.float32], kind: IndexKind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = IndexSettings(kind, min_recall=0.9)
        plan = plan_index(N, DIM, settings)
        index, report = build_index(directions(), plan, settings)
        assert index.ntotal == N
        assert report.recall_at_10 >= 0.9
        again, of_blocks = build_index(mapped, plan, settings)
        assert of_blocks == report
        assert faiss.serialize_index(index).tobytes() == faiss.serialize_index(again).tobytes()
        monkeypatch.setattr(build, "LEAST_LISTS", 10**6)
        _, in_one = build_index(directions(), plan, settings)
        assert report.parameters["nprobe"] <= 2 * in_one.parameters["nprobe"]

    def test_an_item_lies_in_the_nearest_list_or_nearly(self) -> None:
        settings = IndexSettings("ivf_sq8", min_recall=0.9)
        index, _ = build_index(directions(), plan_index(N, DIM, settings), settings)
        _, nearest = index.quantizer.search(directions(), 1)
        lists = index.invlists
        found = [
            faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number)).copy()
            for number in range(index.nlist)
        ]
        np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(N))
        right = sum(int((nearest[ids, 0] == number).sum()) for number, ids in enumerate(found))
        assert right / N > 0.9

    def test_items_that_are_all_alike_have_lists_too(self) -> None:
        rows = np.repeat(directions(3), 1_000, axis=0)
        settings = IndexSettings("ivf_sq8", min_recall=0.5)
        index, _ = build_index(rows, plan_index(N, DIM, settings), settings)
        assert (index.ntotal, index.quantizer.ntotal) == (N, index.nlist)
        _, found = index.search(rows[::1_000], 1)
        assert (found[:, 0] // 1_000).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_rows_that_are_written_part_by_part_are_the_file_of_the_whole(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    whole = np.arange(5 * int(np.prod(shape)), dtype=np.float32).reshape(5, *shape)
    with RowFile(tmp_path / "rows.npy", 5, *shape, dtype=np.float32) as file:
        for part in (whole[:2], whole[2:2], whole[2:].astype(np.float64)):
            file.add(part)
    np.save(tmp_path / "whole.npy", whole)
    assert (tmp_path / "rows.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize("shape", [(6, 3), (5, 4), (5, 3, 1), (5,)])
def test_rows_too_many_or_of_another_shape_are_refused(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    with (
        pytest.raises(ValueError, match=r"wanted at most \(5, 3\)"),
        RowFile(tmp_path / "rows.npy", 5, 3, dtype=np.float32) as file,
    ):
        file.add(np.zeros(shape))


def test_rows_too_few_are_refused_at_the_end(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="2 rows are missing"),
        RowFile(tmp_path / "rows.npy", 5, 3, dtype=np.float32) as file,
    ):
        file.add(np.zeros((3, 3)))


def test_an_error_is_not_hidden_by_the_rows_that_are_missing_because_of_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    with pytest.raises(ZeroDivisionError), RowFile(path, 5, 3, dtype=np.float32) as file:
        file.add(np.zeros((1 // 0, 3)))


@pytest.mark.parametrize(("larger_by", "is_mapped"), [(0, False), (1, True)])
def test_a_file_is_read_or_mapped_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, larger_by: int, is_mapped: bool
) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, directions(20))
    monkeypatch.setattr(table, "READ_BYTES", path.stat().st_size - larger_by)
    rows, content = load_rows(path), load_bytes(path)
    np.testing.assert_array_equal(rows, directions(20))
    assert content.tobytes() == path.read_bytes()
    for one in (rows, content):
        mapped = isinstance(one, np.memmap) or isinstance(one.base, np.memmap)
        assert mapped == is_mapped
        assert one.flags.writeable != mapped

"""The files of a gallery, and what it reads from them."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.encoder.contract import Embeddings
from model_store.errors import BundleMismatch, ConfigError
from model_store.gallery import (
    FaissGallery,
    IndexSettings,
    open_gallery,
    opening,
    write_faiss_gallery,
)
from model_store.gallery.files.gallery import NORMS_FILE, Variances, VarianceWriter
from model_store.gallery.files.items import Previews, PreviewsWriter
from model_store.gallery.milvus import gallery as milvus_gallery
from model_store.gallery.milvus.collection import MILVUS_FILE, MilvusAccess, MilvusDescription
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.opening import DatabaseAccess
from tests.laws.gallery_laws import new_items, random_embeddings

PREVIEWS = [b"first", b"", b"third"]
FIELDS = IndexSettings(filter_fields=("place",))


def written(folder: Path, n: int) -> Path:
    folder.mkdir()
    write_faiss_gallery(folder, random_embeddings(n, 4, seed=0), new_items(n), "e", FIELDS)
    return folder


def test_a_file_of_another_number_of_items_is_refused_with_all_numbers(tmp_path: Path) -> None:
    five, four = written(tmp_path / "five", 5), written(tmp_path / "four", 4)
    refused = set()
    for path in sorted(five.iterdir()):
        folder = Path(shutil.copytree(five, tmp_path / path.stem, dirs_exist_ok=True))
        shutil.copy(four / path.name, folder / path.name)
        try:
            FaissGallery(folder)
        except BundleMismatch as error:
            assert f"'{path.name}': 4" in str(error)  # noqa: PT017 - of some files alone
            refused.add(path.name)
        shutil.rmtree(folder)
    assert refused == {
        "fields.json",
        "gallery.faiss",
        "items.sqlite",
        "labels.npy",
        "norms.npy",
        "variances.npy",
    }


def test_few_items_are_searched_exactly_and_all_is_kept_in_single_precision(
    tmp_path: Path,
) -> None:
    gallery = FaissGallery(written(tmp_path / "gallery", 5))
    assert gallery.index_type == "IndexFlatIP"
    rows = np.arange(5)
    kept = gallery.embeddings(rows)
    for array in (kept.mean, kept.variance, kept.features, gallery.directions(rows)):
        assert array.dtype == np.float32
    assert gallery.total_variances(rows).dtype == gallery.variances(rows).dtype == np.float32
    assert gallery.label_codes(rows).dtype == np.int32


def test_variances_of_zero_are_kept_in_half_precision(tmp_path: Path) -> None:
    norms = np.ones(2, dtype=np.float32)
    np.save(tmp_path / NORMS_FILE, norms)
    stored = np.array([[0, 0, 0], [0, 1, 2]], dtype=np.float32)
    with VarianceWriter(tmp_path, 2, 3, half=True) as writer:
        writer.add(norms, stored)
    found = Variances(tmp_path)
    np.testing.assert_array_equal(found.relative(np.arange(2)), stored)
    np.testing.assert_array_equal(found.total_variances(np.arange(2)), [0, 3])


def test_previews_are_those_of_their_rows_whichever_thread_asks(tmp_path: Path) -> None:
    items = [
        replace(item, preview=preview) for item, preview in zip(new_items(3), PREVIEWS, strict=True)
    ]
    with PreviewsWriter(tmp_path / "previews", 640) as writer:
        writer.add(items[:1])
        writer.add(items[1:])
    written = Previews(tmp_path / "previews")
    assert (written.side, [written.at(row) for row in range(4)]) == (640, [*PREVIEWS, b""])
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.map(written.at, range(3))) == PREVIEWS
    nothing = Previews(tmp_path / "nothing")
    assert (nothing.side, nothing.at(0)) == (None, b"")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        writer.add(items)


def test_a_gallery_is_opened_by_the_engine_that_its_files_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "gallery", 5)
    assert isinstance(open_gallery(folder), FaissGallery)
    assert opening.index_description(folder)["kind"] == "flat"
    access = DatabaseAccess()
    asked: list[object] = []
    monkeypatch.setattr(milvus_gallery, "MilvusGallery", lambda *given: asked.extend(given))
    described = {"uri": "http://milvus:19530", "collection": "shoes", "index": {"nlist": 4}}
    (folder / MILVUS_FILE).write_text(json.dumps(described))
    open_gallery(folder, access)
    assert asked == [folder, access.milvus]
    told = {"engine": "milvus", "collection": "shoes", "nlist": 4}
    assert opening.index_description(folder) == told


def test_equal_items_are_ordered_by_id_however_many_there_are(tmp_path: Path) -> None:
    one = random_embeddings(1, 4, seed=0)
    mean, variance = (np.repeat(part, 60, axis=0) for part in (one.mean, one.variance))
    same = Embeddings(mean, variance, np.empty((60, 0), dtype=np.float32))
    write_faiss_gallery(tmp_path, same, new_items(60), "e")
    gallery = FaissGallery(tmp_path)
    found = gallery.candidates(gallery.directions(np.array([7])), 50)
    assert found.rows.tolist() == [list(range(50))]


def test_milvus_gallery_without_an_address_asks_no_host(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.2)
        uri = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        index = {"type": "FLAT", "parameters": {}}
        for address in (uri, str(tmp_path / "any.db")):
            MilvusDescription(
                uri=address, collection="c", encoder="e", n_items=1, dim=4, labels=[], index=index
            ).save(tmp_path)
            for access in (MilvusAccess(token="root:secret"), MilvusAccess()):
                with pytest.raises(ConfigError, match="Set VOUCH_MILVUS_URI") as refused:
                    MilvusGallery(tmp_path, access)
                assert "secret" not in str(refused.value)
        with pytest.raises(TimeoutError):
            stranger.accept()
    assert [path.name for path in tmp_path.iterdir()] == ["milvus.json"]

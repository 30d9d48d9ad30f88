"""A gallery in Milvus that takes changes: as whole as one in files, by way of its log."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from model_store.errors import GallerySuperseded, WriteRefused
from model_store.gallery import (
    ChangesFile,
    Delete,
    MilvusGallery,
    MilvusLive,
    NewItem,
    Retry,
    Thumbnail,
    Upsert,
    write_milvus_gallery,
)
from tests.laws.gallery_laws import new_items, random_embeddings
from tests.laws.writable_laws import (
    DIM,
    N_ITEMS,
    Reopen,
    WritableLaws,
    ids_of,
    nearest,
    some_upsert,
)
from tests.support.milvus import lite_file

pytestmark = pytest.mark.slow


def write(folder: Path, uri: str) -> None:
    folder.mkdir(exist_ok=True)
    embeddings = random_embeddings(N_ITEMS, DIM, seed=0)
    # Another encoder is another collection: each test has one of its own.
    write_milvus_gallery(folder, embeddings, new_items(N_ITEMS), str(folder), uri)


def log_of(folder: Path) -> ChangesFile:
    return ChangesFile(folder / "changes" / "log.sqlite", "the-bundle", str(folder))


def opened(folder: Path) -> MilvusLive:
    return MilvusLive(MilvusGallery(folder), log_of(folder))


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with lite_file(tmp_path_factory.mktemp("milvus") / "galleries.db") as uri:
        yield uri


@pytest.fixture
def folder(tmp_path: Path, milvus: str) -> Path:
    write(tmp_path / "bundle", milvus)
    return tmp_path / "bundle"


@pytest.fixture
def live(folder: Path) -> MilvusLive:
    return opened(folder)


class TestWriting(WritableLaws):
    """Keeps what every gallery keeps that takes changes."""

    @pytest.fixture
    def reopen(self, folder: Path) -> Reopen:
        return lambda: opened(folder)


def test_the_log_holds_only_what_milvus_has_not_heard_of(live: MilvusLive, folder: Path) -> None:
    live.commit([some_upsert("a"), some_upsert("b", seed=8)])
    live.commit([Delete("a")])
    log = log_of(folder)
    assert (log.after(0), log.start()) == ([], 3)


def test_an_item_that_milvus_does_not_take_is_refused_and_not_in_the_log(
    live: MilvusLive, folder: Path
) -> None:
    large = NewItem("large", None, {}, Thumbnail(bytes(60_000), "image/png"))
    with pytest.raises(WriteRefused, match="Milvus takes at most"):
        live.commit([some_upsert("a"), Upsert(large, some_upsert("x").vector)])
    assert log_of(folder).after(0) == []
    live.commit([some_upsert("b")])
    assert {"a", "large"}.isdisjoint(ids_of(live.snapshot()))


def test_one_that_is_not_current_any_more_takes_no_changes(folder: Path) -> None:
    def superseded() -> None:
        raise GallerySuperseded("another is current")

    live = MilvusLive(MilvusGallery(folder), log_of(folder), superseded)
    with pytest.raises(GallerySuperseded):
        live.commit([some_upsert("lost")])
    assert "lost" not in ids_of(live.refresh())


RETRY = Retry("key", "request")


def crash_at(folder: Path, uri: str, name: str) -> None:
    """Make a gallery, write to it, and end as by a power cut at a call."""
    write(folder, uri)
    live = opened(folder)
    live.commit([some_upsert("old", seed=1)])
    patch = pytest.MonkeyPatch()
    patch.setattr(f"model_store.gallery.{name}", lambda *_: os._exit(7))
    live.commit([some_upsert("new", seed=3), some_upsert("more", seed=4), Delete("old")], RETRY)


@pytest.mark.parametrize(
    "name",
    [
        "milvus.live.MilvusLive._tell",  # the log has it, Milvus has nothing of it
        "milvus.gallery.MilvusGallery.delete",  # Milvus has a part of it
        "live.log.Transaction.truncate",  # Milvus has it, the log does not know
    ],
)
@pytest.mark.process
def test_what_a_crash_kept_from_milvus_is_told_it_afterwards(tmp_path: Path, name: str) -> None:
    uri, folder = str(tmp_path / "crash.db"), tmp_path / "bundle"
    run_and_crash(crash_at, folder, uri, name)
    with lite_file(Path(uri)):
        live = opened(folder)
        now = live.snapshot()
        assert now.n_items == N_ITEMS + 2
        assert (nearest(now, 3), nearest(now, 4)) == ("new", "more")
        assert "old" not in ids_of(now)
        before = live.receipt(RETRY)
        assert before is not None
        assert live.commit([some_upsert("other")], RETRY) == before
        assert log_of(folder).after(0) == []


def run_and_crash(target: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 7

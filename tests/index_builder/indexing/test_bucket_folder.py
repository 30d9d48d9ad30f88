"""Names of a bucket or of the web: the order of a folder, and what leads out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import IO, cast

import pytest

from index_builder.datasets.image_files import LeftOut, Reason
from index_builder.indexing.blocks import Place
from index_builder.indexing.sources.opening import BucketFiles
from index_builder.indexing.sources.places import Folder, RemotePlaces
from index_builder.storage import NotFetched, Storage
from index_builder.storage.bucket import ListedObject
from model_store.errors import DatasetError


class Bucket:
    """Lists what a test says, in that order."""

    def __init__(self, *keys: str, contents: Mapping[str, bytes | None] | None = None) -> None:
        self.keys = keys
        self.contents = contents or {}

    def listed(self, folder: str) -> Iterator[ListedObject]:
        assert folder.startswith("s3://bucket")
        for n, key in enumerate(self.keys):
            yield ListedObject(key, n, 10 * n, f"v{n}")

    def fetch(self, url: str, file: IO[bytes], most: int, version: str) -> Future[None]:
        key = url.removeprefix("s3://bucket/")
        done: Future[None] = Future()
        content = self.contents[key]
        if content is None:
            done.set_exception(NotFetched(key))
        else:
            file.write(content[:most])
            done.set_result(None)
        return done


PNG, HEIC = b"\x89PNG\r\n\x1a\n", b"\0\0\0\x18ftypheic"


def files(folder: str, *keys: str) -> BucketFiles:
    return BucketFiles(cast("Storage", Bucket(*keys)), folder)


@pytest.mark.parametrize("folder", ["s3://bucket/of/boots", "s3://bucket/of/boots/"])
def test_files_come_as_from_a_folder_on_a_disk(folder: str) -> None:
    names = ["b.png", "a-1.png", "a/x.png", "a.png", "a/"]
    with closing(files(folder, *(f"of/boots/{name}" for name in names))) as found:
        listed = {one.name: one.place() for one in found.files(LeftOut())}
    assert list(listed) == ["a/x.png", "a-1.png", "a.png", "b.png"]
    assert listed["a-1.png"] == Place("s3://bucket/of/boots/a-1.png", None, 1, 10, None, "v1")


def test_a_bucket_itself_is_a_folder() -> None:
    with closing(files("s3://bucket", "b.png", "a/x.png")) as found:
        paths = [one.place().path for one in found.files(LeftOut())]
        assert paths == ["s3://bucket/a/x.png", "s3://bucket/b.png"]


def test_bucket_folder_of_any_suffix_is_told_by_content() -> None:
    contents = {"a/photo": PNG, "b.bin": b"nothing", "c.heic": HEIC, "._d.png": b"", "gone": None}
    files = BucketFiles(cast("Storage", Bucket(*contents, contents=contents)), "s3://bucket")
    left_out = LeftOut()
    with closing(files):
        entries = list(Folder(files.files).entries(Path(), left_out))
    assert [one.id for one in entries] == ["a/photo"]
    reasons = {one.name: one.reason for one in left_out.files}
    assert reasons == {
        "._d.png": Reason.system_file,
        "b.bin": Reason.not_an_image,
        "c.heic": Reason.other_format,
        "gone": Reason.not_opened,
    }


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (["b.parquet", "a.parquet", "data/c.parquet"], ["a.parquet", "b.parquet"]),
        (["data/d.parquet", "data/c.parquet", "data/deep/e.parquet"],
         ["data/c.parquet", "data/d.parquet"]),
        (["other/a.parquet", "a.png"], []),
    ],
)  # fmt: skip
def test_tables_are_found_where_a_data_set_has_them(keys: list[str], wanted: list[str]) -> None:
    with closing(files("s3://bucket/set", *(f"set/{key}" for key in keys))) as found:
        assert found.parquet() == [f"s3://bucket/set/{name}" for name in wanted]


@pytest.mark.parametrize(
    ("root", "name", "wanted"),
    [
        ("https://shop.example/of", "a.png", "https://shop.example/of/a.png"),
        ("https://shop.example/of", "./in/a.png", "https://shop.example/of/in/a.png"),
        ("https://shop.example/of", "http://other.example/a.png", "http://other.example/a.png"),
        ("https://shop.example/of", "../a.png", None),
        ("https://shop.example/of", "/a.png", None),
        ("https://shop.example/of", "s3://bucket/a.png", None),
        ("s3://bucket/of", "s3://other/a.png", "s3://other/a.png"),
        ("s3://bucket/of", "https://shop.example/a.png", "https://shop.example/a.png"),
        ("s3://bucket/of", "in/../../a.png", None),
    ],
)
def test_a_manifest_from_elsewhere_names_what_it_may(
    root: str, name: str, wanted: str | None
) -> None:
    places = RemotePlaces(root)
    if wanted is None:
        with pytest.raises(DatasetError, match=r"line 3 (leads|is in a bucket)"):
            places.place(name, "line 3")
    else:
        assert places.place(name, "line 3") == Place(wanted, None, 0, 0)
    for refused in ("ftp://shop.example/a.png", "\ud83d.png"):
        with pytest.raises(DatasetError):
            places.place(refused, "line 3")

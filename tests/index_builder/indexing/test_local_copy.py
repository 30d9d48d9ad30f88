"""A source becomes a folder: which paths its images have, and what is not fetched again."""

from __future__ import annotations

import csv
import os
import tarfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from index_builder.datasets.folder import COPIED_ITEMS
from index_builder.datasets.folder import folder as read_folder
from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.local_copy import AHEAD, copy_images
from index_builder.indexing.sources import open_source
from index_builder.storage import Storage
from model_store.errors import DatasetError, SourceUnavailable, TooManyBadImages
from model_store.images import ImageLimits
from tests.index_builder.indexing.test_data_set_sources import png, striped
from tests.support.elsewhere import Elsewhere

SHOP = "https://shop.example"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    for name in ("a/x.png", "a/deep/y.JPG", "top.webp", "notes.txt", "a/IMG.heic"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode())
    return source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copy" / "of" / "images"


def files_of(folder: Path) -> dict[str, bytes]:
    """The copies by name, without their manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    paths.remove(folder / COPIED_ITEMS)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def manifest(path: Path, rows: Sequence[tuple[str, str, str]]) -> str:
    """Rows of id, path and label."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "path", "label"), *rows])
    return str(path)


@pytest.mark.parametrize("packed", [False, True])
def test_images_keep_their_paths(source: Path, folder: Path, *, packed: bool) -> None:
    images = {name: name.encode() for name in ("a/deep/y.JPG", "a/x.png", "top.webp")}
    if packed:
        with tarfile.open(source.with_suffix(".tar"), "w") as file:
            file.add(source, ".")
        source = source.with_suffix(".tar")
    left_out = copy_images(str(source), folder, Storage())
    assert files_of(folder) == images
    assert [Path(one.name).name for one in left_out.files] == ["IMG.heic", "notes.txt"]
    assert list(folder.parent.iterdir()) == [folder]  # what was unpacked is away


def test_images_in_parquet_are_copied_and_none_in_place_of_a_missing_one(
    tmp_path: Path, folder: Path
) -> None:
    names, contents = ("x.png", "y.png", "z.png"), (b"x", None, b"z")
    images = [{"bytes": one, "path": name} for name, one in zip(names, contents, strict=True)]
    rows = pa.table({"image": images, "label": ["a", "b", "a"]})
    parquet.write_table(rows, tmp_path / "rows.parquet")
    with pytest.raises(TooManyBadImages, match="1 of 3 images could not be copied"):
        copy_images(str(tmp_path / "rows.parquet"), folder, Storage())
    assert files_of(folder) == {"a/x.png": b"x", "a/z.png": b"z"}


def test_what_is_there_is_not_copied_again_and_what_is_gone_is_removed(
    source: Path, folder: Path
) -> None:
    copy_images(str(source), folder, Storage())
    copies = [folder / "a/x.png", folder / "a/deep/y.JPG", folder / "top.webp"]
    before = [path.stat() for path in copies]
    dates = [(source / path.relative_to(folder)).stat().st_mtime_ns for path in copies]
    assert [one.st_mtime_ns for one in before] == dates
    status = (source / "a/x.png").stat()
    (source / "a/x.png").write_bytes(b"another size")
    os.utime(source / "a/x.png", ns=(status.st_atime_ns, status.st_mtime_ns))  # on the same day
    os.utime(source / "a/deep/y.JPG", ns=(1, 1))
    (folder / "left.png").touch()
    copy_images(str(source), folder, Storage())
    again = [path.stat().st_ino == one.st_ino for path, one in zip(copies, before, strict=True)]
    assert again == [False, False, True]
    assert copies[0].read_bytes() == b"another size"
    (source / "top.webp").unlink()
    copy_images(str(source), folder, Storage())
    assert list(files_of(folder)) == ["a/deep/y.JPG", "a/x.png"]


@pytest.mark.parametrize(
    ("name", "label", "path"),
    [
        ("owl/1.png", "owl", "owl/1.png"),
        ("owl/1.png", "fox", "fox/owl%2F1.png"),
        ("owl/1.png", "", "owl%2F1.png"),
        ("1.PNG", "", "1.PNG"),
        ("1.png", "owl", "owl/1.png"),
        ("owl/1", "owl", "owl/1"),  # what it is, its content says
        ("owl//1.png", "owl", "owl/owl%2F%2F1.png"),
        ("owl/../../1.png", "owl", "owl/owl%2F..%2F..%2F1.png"),
        ("/owl/1.png", "/", "%2F/%2Fowl%2F1.png"),
        ("1.png", ".", f"{sha256(b'.').hexdigest()}/1.png"),
        ("1.png", "..", f"{sha256(b'..').hexdigest()}/1.png"),
        ("é & co.png", "", "é & co.png"),
        ("é/& co.png", "", "%C3%A9%2F& co.png"),
        ("/" + "n" * 143 + ".png", "", "%2F" + "n" * 143 + ".png"),  # of 150 characters
        (
            "/" + "n" * 149 + ".abcdefghijk",
            "",
            sha256(b"/" + b"n" * 149 + b".abcdefghijk").hexdigest() + ".abcdefghi",
        ),
        ("/" + "n" * 144 + ".png", "", sha256(b"/" + b"n" * 144 + b".png").hexdigest() + ".png"),
    ],
)
def test_an_image_is_called_as_a_file_may_be(
    source: Path, folder: Path, name: str, label: str, path: str
) -> None:
    copy_images(manifest(source / "list.csv", [(name, "top.webp", label)]), folder, Storage())
    assert list(files_of(folder)) == [path]


def test_without_labels_there_are_no_sub_folders(source: Path, folder: Path) -> None:
    copy_images(str(source), folder, Storage(), labelled=False)
    assert list(files_of(folder)) == ["a%2Fdeep%2Fy.JPG", "a%2Fx.png", "top.webp"]


@pytest.mark.parametrize(("n_missing", "is_refused"), [(1, False), (2, True)])
def test_one_image_in_a_hundred_may_be_missing(
    source: Path,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    n_missing: int,
    *,
    is_refused: bool,
) -> None:
    rows = [(f"{n}.png", "gone.png" if n < n_missing else "top.webp", "") for n in range(100)]
    listed = manifest(source / "list.csv", rows)
    if is_refused:
        refused = (
            r"2 of 100 images .* at most 1 % may fail; for example '0\.png': .*Correct the path"
        )
        with pytest.raises(TooManyBadImages, match=refused):
            copy_images(listed, folder, Storage())
    else:
        copy_images(listed, folder, Storage())
    assert len(files_of(folder)) == 100 - n_missing
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"left out {n}.png" for n in range(n_missing) if not is_refused
    ]


def test_two_images_of_one_name_are_refused(source: Path, folder: Path) -> None:
    rows = [(".a", "top.webp", ""), ("item .a", "top.webp", "")]
    with pytest.raises(DatasetError, match=r"line 3 and another image are both called 'item \.a'"):
        copy_images(manifest(source / "list.csv", rows), folder, Storage())


def test_two_images_with_one_id_and_two_labels_are_refused(source: Path, folder: Path) -> None:
    rows = [("1.png", "top.webp", "owl"), ("1.png", "top.webp", "fox")]
    with pytest.raises(DatasetError, match=r"line 3 and another image are both called '1\.png'"):
        copy_images(manifest(source / "list.csv", rows), folder, Storage())


@pytest.mark.parametrize("labelled", [True, False])
def test_the_copy_has_the_items_of_the_source(
    tmp_path: Path, folder: Path, *, labelled: bool
) -> None:
    """Labels that are no folder names, and columns that are no part of a file name."""
    labels = ["F\u00fcchse", "T-shirt/top", "100%", ".hidden", "node_modules", "#recycle"]
    lines = ["path,label,group,source,year,metadata"]
    generator = np.random.default_rng(0)
    for number, label in enumerate(labels):
        pixels = generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        (tmp_path / f"{number}.png").write_bytes(png(Image.fromarray(pixels)))
        lines.append(f'{number}.png,{label},g{number // 2},camera,{1990 + number},"{{""a"": 1}}"')
    (tmp_path / "list.csv").write_text("\n".join(lines), encoding="utf-8")
    source = str(tmp_path / "list.csv")
    left_out = copy_images(source, folder, Storage(), labelled=labelled)
    entries = list(open_source(source, labelled=labelled).entries(tmp_path, LeftOut()))
    images = read_folder(folder, labelled=labelled)
    assert not left_out.files
    assert images.ids == tuple(one.id for one in entries)
    assert images.labels == tuple(labels if labelled else images.ids)
    assert images.metadata == tuple(one.metadata for one in entries)
    groups = images.groups or ()
    assert images.sources == ("camera",) * len(labels)
    assert [groups.index(one) for one in groups] == [0, 0, 2, 2, 4, 4]
    again = list(open_source(folder / COPIED_ITEMS, labelled=labelled).entries(tmp_path, LeftOut()))
    assert [one.id for one in again] == list(images.ids)


def test_copies_without_a_label_are_left_out_by_name(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "1.png").write_bytes(png(striped()))
    rows = [("one", "1.png", "owl"), ("two", "1.png", "")]
    copy_images(manifest(tmp_path / "list.csv", rows), folder, Storage())
    assert read_folder(folder).ids == ("one",)
    assert "without a label: 1 (two). The source gives the image no label" in caplog.text


def test_copies_without_any_label_are_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "1.png").write_bytes(png(striped()))
    rows = [("one", "1.png", ""), ("two", "1.png", "")]
    copy_images(manifest(tmp_path / "list.csv", rows), folder, Storage())
    with pytest.raises(DatasetError, match=r"None of the 2 images has a label\. A table has"):
        read_folder(folder)


def test_source_without_images_is_refused_by_its_name(tmp_path: Path, folder: Path) -> None:
    listed = manifest(tmp_path / "list.csv", [])
    with pytest.raises(DatasetError, match=r"^There are no images in .*list\.csv\. Name another"):
        copy_images(listed, folder, Storage())


def test_parts_of_pictures_are_refused(source: Path, folder: Path) -> None:
    (source / "list.csv").write_text('path,bbox\ntop.webp,"[0, 0, 1, 1]"\n')
    with pytest.raises(DatasetError, match="names a part of a picture"):
        copy_images(str(source / "list.csv"), folder, Storage())


def test_images_of_the_web_are_fetched_some_at_a_time(source: Path, folder: Path) -> None:
    contents = {f"{SHOP}/{n}.png": b"%d" % n for n in range(AHEAD + 20)}
    rows = [(url.rpartition("/")[2], url, "") for url in contents]
    listed, there = manifest(source / "list.csv", rows), Elsewhere(contents)
    copy_images(listed, folder, there.as_storage())
    assert files_of(folder) == {url.rpartition("/")[2]: data for url, data in contents.items()}
    assert there.n_asked_first == AHEAD
    assert {most for _, most, _ in there.asked} == {ImageLimits().max_bytes + 1}
    assert there.is_closed
    again = Elsewhere(contents)
    copy_images(listed, folder, again.as_storage())
    assert not again.asked  # only its URL is known of each
    (folder / "3.png").unlink()
    (folder / "5.png").unlink()
    lost = Elsewhere(contents, lost_at=1)
    with pytest.raises(SourceUnavailable, match=r"gone\. 5 images are copied and kept"):
        copy_images(listed, folder, lost.as_storage())
    assert (folder / "3.png").exists()

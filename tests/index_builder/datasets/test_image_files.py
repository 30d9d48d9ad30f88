"""Files of a source: images by content, and a reason for every other file."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from index_builder.datasets.folder import folder
from index_builder.datasets.image_files import LeftOut, Reason, image_files, is_system_file
from index_builder.indexing.sources import open_source
from tests.support.image_files import encoded, picture

APPLE_DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        "
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
TIFF = b"II*\0\x08\0\0\0"

FILES: dict[str, tuple[bytes | None, Reason | None]] = {
    "photo": (None, None),
    "x.apng": (None, None),
    "x.mpo": (None, None),
    "x.jpg_large": (None, None),
    "x.jpg.1": (None, None),
    "x.pjpeg": (None, None),
    "x.txt": (None, None),
    "IMAGE.JPG": (None, None),
    "damaged.jpg": (b"nothing of an image", None),
    "empty.png": (b"", None),
    "a.heic": (HEIC, Reason.other_format),
    "heic.jpg": (HEIC, Reason.other_format),
    "a.avif": (b"\0\0\0\x1cftypavif", Reason.other_format),
    "avif": (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", Reason.other_format),
    "a.cr3": (b"\0\0\0\x18ftypcrx ", Reason.other_format),
    "a.nef": (TIFF, Reason.other_format),
    "b.dng": (TIFF, Reason.other_format),
    "a.jxl": (b"\xff\x0a", Reason.other_format),
    "a.jp2": (b"\0\0\0\x0cjP  \r\n\x87\n", Reason.other_format),
    "a.psd": (b"8BPS", Reason.other_format),
    "a.svg": (b'<?xml version="1.0"?><svg>', Reason.other_format),
    "scan.pdf": (b"%PDF-1.7", Reason.other_format),
    "a.tga": (b"\0\0\2", Reason.other_format),
    "a.ppm": (b"P6\n2 2\n255\n", Reason.other_format),
    "notes.md": (b"BM stands for Bo Mu, as usual.", Reason.not_an_image),
    "labels.csv": (b"path,label\n", Reason.not_an_image),
    "page.html": (b"<!DOCTYPE html>", Reason.not_an_image),
    "clip.mp4": (b"\0\0\0\x18ftypisom", Reason.not_an_image),
    "more.zip": (b"PK\3\4", Reason.not_an_image),
    "nothing": (b"", Reason.not_an_image),
    "pointer.bin": (b"version https://git-lfs.github.com/spec/v1\n", Reason.not_an_image),
    "._photo.jpg": (APPLE_DOUBLE, Reason.system_file),
    "double.jpg": (APPLE_DOUBLE, Reason.system_file),
    ".DS_Store": (b"\0\0\0\1Bud1", Reason.system_file),
    "Thumbs.db": (b"\xd0\xcf", Reason.system_file),
    "desktop.ini": (b"[.Shell]", Reason.system_file),
    "@eaDir/photo.jpg/SYNOPHOTO_THUMB_M.jpg": (None, Reason.system_file),
    ".ipynb_checkpoints/a-checkpoint.jpg": (None, Reason.system_file),
    "deep/.thumbnails/a.jpg": (None, Reason.system_file),
    "__MACOSX/a.jpg": (None, Reason.system_file),
    "$RECYCLE.BIN/a.jpg": (None, Reason.system_file),
    "#recycle/a.jpg": (None, Reason.system_file),
}
"""Content and reason of each file; None for a PNG, and for one that is decoded."""


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """All `FILES`, in one label folder."""
    for name, (content, _) in FILES.items():
        path = tmp_path / "images" / "label" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture()) if content is None else content)
    return tmp_path / "images"


def expected(reason: Reason | None) -> set[str]:
    return {f"label/{name}" for name, (_, why) in FILES.items() if why is reason}


def reasons_of(left_out: LeftOut) -> dict[str, Reason]:
    assert len({one.name for one in left_out.files}) == len(left_out.files)
    return {one.name: one.reason for one in left_out.files}


@pytest.mark.parametrize("packed", [False, True])
def test_source_of_every_kind_of_file_names_each_that_it_leaves_out(
    collection: Path, tmp_path: Path, *, packed: bool
) -> None:
    source = collection
    if packed:
        source = tmp_path / "images.tar"
        with tarfile.open(source, "w") as file:
            file.add(collection, ".")
    left_out = LeftOut()
    taken = {one.id for one in open_source(source).entries(tmp_path, left_out)}
    found = reasons_of(left_out)
    assert taken == expected(None)
    for reason in Reason:
        assert {name for name, why in found.items() if why is reason} == expected(reason)


def test_both_readers_of_a_folder_agree(collection: Path, tmp_path: Path) -> None:
    of_index, of_all = LeftOut(), LeftOut()
    indexed = [one.id for one in open_source(collection).entries(tmp_path, of_index)]
    assert list(image_files(collection, of_all)) == indexed
    assert of_all.files == of_index.files
    assert folder(collection).ids == tuple(
        name for name in indexed if name not in {"label/damaged.jpg", "label/empty.png"}
    )


def test_left_out_rows_count_every_file(collection: Path, tmp_path: Path) -> None:
    left_out = LeftOut()
    list(open_source(collection).entries(tmp_path, left_out))
    counts = [int(row.partition(":")[0].partition(";")[0]) for _, row in left_out.rows()]
    assert sum(counts) == len(left_out.files) == sum(why is not None for _, why in FILES.values())
    assert any("scan.pdf" in one.name and "PDF" in one.sentence for one in left_out.files)


def test_special_files_are_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for entries in (
        lambda left_out: image_files(tmp_path, left_out),
        lambda left_out: open_source(tmp_path).entries(tmp_path, left_out),
    ):
        left_out = LeftOut()
        assert not list(entries(left_out))
        assert set(reasons_of(left_out).values()) == {Reason.not_opened}
        assert len(left_out.files) == 3
        (said,) = left_out.sentences
        assert "that cannot be opened: 3 (circle, nowhere, pipe)" in said


def test_linked_folders_within_a_source_are_not_entered_twice(tmp_path: Path) -> None:
    (tmp_path / "run5").mkdir()
    (tmp_path / "run5" / "a.png").write_bytes(encoded(picture()))
    (tmp_path / "latest").symlink_to(tmp_path / "run5")
    (tmp_path / "run5" / "up").symlink_to(tmp_path)
    left_out = LeftOut()
    assert list(image_files(tmp_path, left_out)) == ["run5/a.png"]
    assert reasons_of(left_out) == {
        "latest": Reason.linked_folder,
        "run5/up": Reason.linked_folder,
    }
    assert any("latest" in sentence for sentence in left_out.sentences)


def test_system_files_in_a_sample_of_an_archive_do_not_divide_it(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    (tmp_path / "1.png").write_bytes(encoded(picture()))
    (tmp_path / "1.cls").write_text("cat")
    (tmp_path / "._1.cls").write_bytes(APPLE_DOUBLE)
    with tarfile.open(path, "w") as file:
        for name in ("._1.cls", "1.png", "._1.cls", "1.cls"):
            file.add(tmp_path / name, name)
    (entry,) = open_source(path).entries(tmp_path, LeftOut())
    assert (entry.id, entry.label) == ("1.png", "cat")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a/b.jpg", False),
        ("a/.b.jpg", True),
        (".a/b.jpg", True),
        ("@EADIR/b.jpg", True),
        ("a/thumbs.DB", True),
        ("a/@home/b.jpg", False),
        ("a/dot.in.name/b", False),
        ("a/photo.jpg.crdownload", True),
        ("DCIM/100CANON/MVI_1.THM", True),
        ("a.jpg@SynoEAStream", True),
        ("Previews.lrdata/0/a.jpg", True),
        ("My Photos Library.photoslibrary/resources/derivatives/a.jpg", True),
        ("My Photos Library.photoslibrary/originals/0/a.jpg", False),
        ("originals/a.jpg", False),
        ("a/LOST.DIR/1", True),
        ("trashbox/a.jpg", True),
        ("particle/apartment.jpg", False),
        ("./a/b.jpg", False),
    ],
)
def test_is_system_file_by_name(name: str, *, wanted: bool) -> None:
    assert is_system_file(name) == wanted


def test_advice_to_convert_a_file_leaves_sound_images_with_its_suffix(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "good.jpg")
    (tmp_path / "an other.jpg").write_bytes(b"\0\0\0\x1cftypavif\0\0\0\0" + bytes(64))
    left_out = LeftOut()
    assert list(image_files(tmp_path, left_out)) == ["good.jpg"]
    (said,) = left_out.sentences
    assert said.endswith("magick 'an other.jpg' 'an other.jpg.png'")


def test_advice_for_a_link_into_the_source_does_not_end_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "run5").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "run5")
    left_out = LeftOut()
    assert list(image_files(tmp_path, left_out)) == []
    (said,) = left_out.sentences
    assert "Links to folders in the source are never followed" in said


@pytest.mark.parametrize(
    ("names", "is_left_out"),
    [
        (["manifest.json", "encoder.onnx"], True),
        (["encoder.json", "encoder.onnx"], True),
        (["lock", "config.toml"], True),
        (["lock", "shards/0"], True),
        (["training.json", "bundle/gallery.faiss"], True),
        (["manifest.json", "config.toml"], False),
        (["lock"], False),
    ],
)
def test_folders_that_vouch_has_written_are_left_out(
    tmp_path: Path, names: list[str], *, is_left_out: bool
) -> None:
    for name in (*names, "samples/1.png", "../../birds/a.png"):
        path = tmp_path / "runs" / "birds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture()) if name.endswith(".png") else b"")
    left_out = LeftOut()
    found = list(image_files(tmp_path, left_out))
    assert "birds/a.png" in found
    assert ("runs/birds/samples/1.png" not in found) is is_left_out
    assert ("runs/birds/" in [one.name for one in left_out.of(Reason.own_output)]) is is_left_out
    assert "samples/1.png" in image_files(tmp_path / "runs" / "birds", LeftOut()), "as named"

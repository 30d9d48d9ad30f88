"""Folders, manifests and archives: what is in them, and what is refused."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import json
import math
import os
import shutil
import tarfile
import unicodedata
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from index_builder.datasets.image_files import LeftOut, Reason
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.prepare import bytes_of
from index_builder.indexing.sources import is_of_vectors, name_of, open_source, open_vectors
from index_builder.indexing.sources.manifest import ImageManifest
from index_builder.indexing.sources.places import MISSING, LocalPlaces
from index_builder.vectors.table import open_table
from model_store.errors import DatasetError
from model_store.images import ImageLimits

FIELDS: list[dict[str, Any]] = [
    {"id": "a", "path": "0/x.png", "label": "nought", "metadata": {"price": 3, "in": ["b", None]}},
    {"id": "b", "path": "1/y.png", "label": None, "metadata": None},
    {"id": "ünï", "path": "0/z.png", "label": "nought", "metadata": {}},
]


def entries(source: Path, scratch: Path | None = None, **options: Any) -> list[Entry]:
    return list(open_source(source, **options).entries(scratch or source.parent, LeftOut()))


def told(found: list[Entry]) -> list[tuple[str, str | None, dict[str, object]]]:
    return [(entry.id, entry.label, dict(entry.metadata)) for entry in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for name in ("0/x.png", "1/y.png", "0/z.png", "top.JPG", "0/deep/w.webp", "notes.txt"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def written(folder: Path, kind: str) -> Path:
    """The fields as a manifest of that kind."""
    path = folder / f"list.{kind}"
    if kind == "parquet":
        rows = [{**one, "metadata": json.dumps(one["metadata"] or {})} for one in FIELDS]
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("\n\n".join(json.dumps(one) for one in FIELDS), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, ["id", "path", "label", "metadata"])
            writer.writeheader()
            for one in FIELDS:
                metadata = json.dumps(one["metadata"]) if one["metadata"] else ""
                writer.writerow({**one, "metadata": metadata})
    return path


def test_a_folder_gives_its_images_in_order(folder: Path) -> None:
    found = entries(folder)
    assert told(found) == [
        ("0/deep/w.webp", "0", {}),
        ("0/x.png", "0", {}),
        ("0/z.png", "0", {}),
        ("1/y.png", "1", {}),
        ("top.JPG", None, {}),
    ]
    assert [bytes_of(entry.place, ImageLimits()) for entry in found] == [
        entry.id.encode() for entry in found
    ]
    assert {entry.label for entry in entries(folder, labelled=False)} == {None}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_manifests_of_all_kinds_say_the_same(folder: Path, kind: str) -> None:
    found = entries(written(folder, kind))
    assert told(found) == [(one["id"], one["label"], one["metadata"] or {}) for one in FIELDS]
    assert [bytes_of(entry.place, ImageLimits()) for entry in found] == [
        b"0/x.png",
        b"1/y.png",
        b"0/z.png",
    ]


def test_a_manifest_names_groups_and_sources(folder: Path) -> None:
    path = folder / "list.csv"
    path.write_text("path,group,source\n0/x.png,shoe 7,shop\n0/z.png,,\n", encoding="utf-8")
    assert [(one.group, one.source) for one in entries(path)] == [("shoe 7", "shop"), (None, None)]
    assert {one.group for one in entries(folder)} == {None}


TAR_MODES: dict[str, Literal["w", "w:gz", "w:bz2", "w:xz"]] = {
    "tar": "w",
    "tar.gz": "w:gz",
    "tgz": "w:gz",
    "tar.bz2": "w:bz2",
    "tar.xz": "w:xz",
}


@pytest.mark.parametrize("suffix", TAR_MODES)
def test_archives_are_read_where_they_lie(folder: Path, tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"images.{suffix}"
    with tarfile.open(archive, TAR_MODES[suffix]) as file:
        for name in ("1/y.png", "0/x.png", "notes.txt"):
            file.add(folder / name, f"./{name}")
    unpacked = set()
    for _ in range(2):  # the second time from what the first one unpacked
        found = entries(archive, tmp_path)
        unpacked.add(Path(found[0].place.path).stat().st_ino)
        assert (Path(found[0].place.path) == archive) == (suffix == "tar")
        assert told(found) == [("1/y.png", "1", {}), ("0/x.png", "0", {})]
        assert [bytes_of(entry.place, ImageLimits()) for entry in found] == [b"1/y.png", b"0/x.png"]
    assert len(unpacked) == 1
    assert name_of(archive) == "images"


def test_what_is_not_there_is_an_entry_all_the_same(folder: Path) -> None:
    path = folder / "list.csv"
    path.write_text("path\n0/x.png\n0/gone.png\n0\n", encoding="utf-8")
    found = entries(path)
    assert [entry.place.size for entry in found] == [7, -1, -1]
    assert [entry.place.changed_ns > 0 for entry in found] == [True, False, False]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id,file\na,0/x.png\n", "line 2: there is no path.*'id', 'file'"),
        ("id,path\na\n", "line 2: the number of values differs"),
        ("id,path\na,0/x.png,b\n", "line 2: the number of values differs"),
        ("path;lat\n0/x.png;47,37\n", "Separate columns with commas, not with semicolons"),
        ("id,path\na,\n", "line 2: there is no path"),
        ("id,path,metadata\na,0/x.png,[1]\n", r"line 2: metadata is \[1\]; wanted an object"),
        ("id,path,metadata\na,0/x.png,{\n", "line 2: metadata is not JSON"),
        ('id,path,metadata\na,0/x.png,"{""x"": NaN}"\n', "line 2: metadata is not JSON"),
        ('path,metadata\n0/x.png,"{""y"": 1, ""y"": 2}"\n', "metadata: 'y' appears more than once"),
        (
            'path,y,metadata\n0/x.png,1,"{""y"": 2}"\n',
            "'y' has one value in `metadata`",
        ),
        ("path,label,,\n0/x.png,a,,2\n", "line 2: column 4 has the value '2', but no name"),
        ("id,path\na,../secret.png\n", "line 2.*outside .*--root"),
        ("id,path\na,/etc/passwd\n", "line 2.*outside .*--root"),
        ("id,path\na,0/x\0.png\n", "null character|is not CSV"),
        (f"id,path\na,0/x.png\nb,{'x' * 132_000}\n", "line 3 is not CSV .*131072"),
        ("\n\npath,path\n0/x.png,a\n", "line 3: 'path' appears more than once"),
    ],
)
def test_a_wrong_line_is_named(folder: Path, content: str, said: str) -> None:
    path = folder / "list.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match=said):
        entries(path)


def test_blank_lines_may_come_before_the_names_of_columns(folder: Path) -> None:
    (folder / "list.csv").write_text("\n\r\nid,path\n\na,0/x.png\n", encoding="utf-8")
    [entry] = entries(folder / "list.csv")
    assert (entry.id, entry.origin) == ("a", "list.csv, line 5")


def test_without_labels_a_manifests_labels_are_metadata(folder: Path) -> None:
    manifest = folder / "list.csv"
    manifest.write_text(
        'path,label,metadata\n0/a.png,shoe,\n0/a.png,boot,"{""label"": ""mine""}"\n0/a.png,,\n',
        encoding="utf-8",
    )
    found = list(open_source(manifest, labelled=False).entries(folder, LeftOut()))
    assert [entry.label for entry in found] == [None, None, None]
    assert [entry.metadata for entry in found] == [{"label": "shoe"}, {"label": "mine"}, {}]
    kept = list(open_source(manifest).entries(folder, LeftOut()))
    assert [entry.label for entry in kept] == ["shoe", "boot", None]


def test_other_columns_are_metadata(folder: Path) -> None:
    path = folder / "list.csv"
    path.write_text(
        "path,label,price,sku,code,note,group,source,metadata\n"
        '0/x.png,a,12.50,00123,1E5,,g,camera,"{""in"": [1], ""price"": 12.5}"\n'
        "0/z.png,b,-7,ABC,12,new,g,camera,\n",
        encoding="utf-8",
    )
    assert [dict(entry.metadata) for entry in entries(path)] == [
        {"price": 12.5, "sku": "00123", "code": "1E5", "in": [1]},
        {"price": -7, "sku": "ABC", "code": 12, "note": "new"},
    ]


@pytest.mark.parametrize(
    "number", [0.1 + 0.2, 0.020210808927224603, -12.345678901234567, 5e-05, 30]
)
def test_numbers_as_python_writes_them_are_numbers(folder: Path, number: float) -> None:
    path = folder / "list.csv"
    path.write_text(f"path,longitude\n0/x.png,{number!r}\n", encoding="utf-8")
    assert [entry.metadata["longitude"] for entry in entries(path)] == [number]


@pytest.mark.parametrize(
    ("names", "labelled", "warns"),
    [
        ("path,Class", True, True),
        ("path,species", True, True),
        ("path,class", False, False),
        ("path,colour", True, False),
    ],
)
def test_a_column_that_often_has_labels_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], names: str, *, labelled: bool, warns: bool
) -> None:
    path = folder / "list.csv"
    path.write_text(f"{names}\n0/x.png,a\n0/z.png,b\n", encoding="utf-8")
    found = list(open_source(path, labelled=labelled).entries(folder, LeftOut()))
    assert [entry.label for entry in found] == [None, None]
    other = names.split(",")[1]
    said = f"If the column {other} has them, rename it to label." in capsys.readouterr().err
    assert said is warns


def test_empty_columns_without_a_name_and_blank_labels_are_left_out(folder: Path) -> None:
    path = folder / "list.csv"
    path.write_text('path,label,,\n0/x.png," ",, \n', encoding="utf-8")
    assert [(entry.label, entry.metadata) for entry in entries(path)] == [(None, {})]


def test_only_the_unsuitable_column_is_named(folder: Path) -> None:
    rows = {"path": ["0/x.png"], "year": [1999], "length": [dt.timedelta(seconds=3)]}
    parquet.write_table(pa.table(rows), folder / "list.parquet")
    with pytest.raises(DatasetError, match=r"line 1: 'length' cannot be metadata"):
        entries(folder / "list.parquet")


def test_a_value_keeps_its_line_breaks(folder: Path) -> None:
    (folder / "list.csv").write_bytes(b'path,note\r\n0/x.png,"one\r\ntwo"\r\n')
    assert dict(entries(folder / "list.csv")[0].metadata) == {"note": "one\r\ntwo"}


def test_other_fields_of_a_line_are_metadata_as_they_are(folder: Path) -> None:
    path = folder / "list.jsonl"
    line = {"path": "0/x.png", "price": "12.50", "tags": ["a", 1], "gone": None, "group": "g"}
    path.write_text(json.dumps(line), encoding="utf-8")
    assert dict(entries(path)[0].metadata) == {"price": "12.50", "tags": ["a", 1]}


def test_columns_of_parquet_have_the_meaning_of_a_manifest(folder: Path) -> None:
    table = pa.table({"path": ["0/x.png"], "taken": [dt.datetime(2024, 5, 6, 7, 8)]})  # noqa: DTZ001
    parquet.write_table(table, folder / "list.parquet")
    (entry,) = entries(folder / "list.parquet")
    assert dict(entry.metadata) == {"taken": "2024-05-06T07:08:00"}
    binary = pa.table({"path": ["0/x.png"], "raw": [b"1"]})
    parquet.write_table(binary, folder / "list.parquet")
    with pytest.raises(DatasetError, match=r"'raw' cannot be metadata.*Leave this column out"):
        entries(folder / "list.parquet")
    prices = pa.table({"path": ["0/x.png"], "price": [math.nan]})
    parquet.write_table(prices, folder / "list.parquet")
    with pytest.raises(DatasetError, match=r"'price' cannot be metadata.*or this value empty"):
        entries(folder / "list.parquet")
    brightness = pa.table({"path": ["0/x.png"], "mean": [0.5]})
    parquet.write_table(brightness, folder / "list.parquet")
    assert not is_of_vectors(folder / "list.parquet")
    assert dict(entries(folder / "list.parquet")[0].metadata) == {"mean": 0.5}
    vectors = pa.table({"path": ["0/x.png"], "mean": [[0.5]]})
    parquet.write_table(vectors, folder / "list.parquet")
    assert is_of_vectors(folder / "list.parquet")
    places = pa.table({"path": ["0/x.png", None]})
    parquet.write_table(places, folder / "list.parquet")
    with pytest.raises(DatasetError, match="line 2: there is no path"):
        entries(folder / "list.parquet")
    pairs = pa.array([[("price", 3)]], pa.map_(pa.string(), pa.int64()))
    parquet.write_table(pa.table({"path": ["0/x.png"], "metadata": pairs}), folder / "list.parquet")
    assert [one.metadata for one in entries(folder / "list.parquet")] == [{"price": 3}]
    for name, value in (("price", float("nan")), ("metadata", {"price": float("inf")})):
        unwritable = pa.Table.from_pylist([{"path": "0/x.png", name: value}])
        parquet.write_table(unwritable, folder / "list.parquet")
        with pytest.raises(DatasetError, match=r"metadata.* JSON \(Out of range float"):
            entries(folder / "list.parquet")


@pytest.mark.parametrize(
    ("column", "meant"),
    [
        (" label", "label"),
        ("Label", "label"),
        ("LABELS", "label"),
        ("label ", "label"),
        ("\u200blabel", "label"),
        ("ｌａｂｅｌ", "label"),
        ("Group", "group"),
        ("sources", "source"),
        ("ID", "id"),
        ("b_box", "bbox"),
        ("meta-data", "metadata"),
        ("lable", "label"),
        ("labl", "label"),
        ("Labell", "label"),
        ("gruop", "group"),
        ("box", "bbox"),
        ("meatdata", "metadata"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_column_nearly_called_as_a_known_one_is_refused(
    folder: Path, kind: str, column: str, meant: str
) -> None:
    path, row = folder / f"list.{kind}", {"path": "0/x.png", column: "a"}
    if kind == "csv":
        path.write_text(",".join(row) + "\n" + ",".join(row.values()), encoding="utf-8")
    elif kind == "jsonl":
        path.write_text(json.dumps(row), encoding="utf-8")
    else:
        parquet.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(DatasetError) as refused:
        entries(path)
    assert repr(column) in str(refused.value)
    assert f"`{meant}`" in str(refused.value)


@pytest.mark.parametrize("header", ["Path,label", "path ,label", " paths,label"])
def test_column_of_paths_nearly_called_so_is_refused(folder: Path, header: str) -> None:
    (folder / "list.csv").write_text(f"{header}\n0/x.png,a\n")
    with pytest.raises(DatasetError, match="did you mean `path`"):
        entries(folder / "list.csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "path,label,label\n0/x.png,a,b\n"),
        ("list.csv", "path,year,label,year\n0/x.png,1,a,2\n"),
        ("list.jsonl", '{"path": "0/x.png", "label": "a", "label": "b"}'),
        ("list.jsonl", '{"path": "0/x.png", "metadata": {"a": 1, "a": 2}}'),
    ],
)
def test_name_that_stands_twice_is_refused(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(DatasetError, match=f"{name}, line 1: .* appears more than once"):
        entries(folder / name)


def test_empty_columns_without_a_name_are_left_out(folder: Path) -> None:
    (folder / "list.csv").write_text("path,label,,\n0/x.png,a,,\n")
    (entry,) = entries(folder / "list.csv")
    assert (entry.label, entry.metadata) == ("a", {})


def test_columns_unlike_known_ones_are_metadata(folder: Path) -> None:
    path = folder / "list.csv"
    path.write_text("path,label,labels,category,resource,patch,is\n0/x.png,a,b,c,d,e,f\n")
    (entry,) = entries(path)
    assert entry.label == "a"
    wanted = {"labels": "b", "category": "c", "resource": "d", "patch": "e", "is": "f"}
    assert dict(entry.metadata) == wanted


def test_columns_between_semicolons_are_refused_with_advice(folder: Path) -> None:
    (folder / "list.csv").write_text("path;label\n0/x.png;a\n")
    with pytest.raises(DatasetError, match="commas, not with semicolons"):
        entries(folder / "list.csv")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("./0/x.png", "0/x.png"),
        ("0/./x.png", "0/x.png"),
        ("0/../0/x.png", "0/x.png"),
        (".//0//x.png", "0/x.png"),
        ("../a/0/x.png", "a/0/x.png"),
    ],
)
def test_image_is_called_by_its_path_without_steps(tmp_path: Path, written: str, name: str) -> None:
    """As `find .` writes paths; an id with such a step could not be asked for."""
    (tmp_path / "a" / "0").mkdir(parents=True)
    (tmp_path / "a" / "0" / "x.png").write_bytes(b"x")
    manifest = tmp_path / "a" / "list.csv"
    manifest.write_text(f"path\n{written}\n")
    places = LocalPlaces(tmp_path, tmp_path / "a")
    (entry,) = ImageManifest(manifest, places).entries(tmp_path, LeftOut())
    assert (entry.id, entry.place.size) == (name, 1)


def test_path_with_escapes_of_addresses_is_found(folder: Path) -> None:
    (folder / "0" / "a b.png").write_bytes(b"x")
    (folder / "0" / "100%25.png").write_bytes(b"as it is")
    (folder / "list.csv").write_text("path\n0/a%20b.png\n0/100%25.png\n0/%2e%2e/0/x.png\n")
    found = {one.id: one.place for one in entries(folder / "list.csv")}
    assert Path(found["0/a%20b.png"].path).name == "a b.png"
    assert Path(found["0/100%25.png"].path).name == "100%25.png"
    assert found["0/%2e%2e/0/x.png"].size == MISSING


def test_path_of_another_system_is_found(folder: Path) -> None:
    name = unicodedata.normalize("NFD", "café.png")
    (folder / "0" / name).write_bytes(b"nfd")
    (folder / "0" / "twin.png").write_bytes(b"lower")
    (folder / "0" / "TWIN.png").write_bytes(b"upper")
    written = ["0\\x.png", "0/X.PNG", " 0/x.png ", "0/café.png", "0/Twin.png", "0/twin.png"]
    (folder / "list.jsonl").write_text(
        "".join(json.dumps({"path": one, "id": one}) + "\n" for one in written), encoding="utf-8"
    )
    found = {one.id: Path(one.place.path).name for one in entries(folder / "list.jsonl")}
    assert found == {
        "0\\x.png": "x.png",
        "0/X.PNG": "x.png",
        " 0/x.png ": "x.png",
        "0/café.png": name,
        "0/Twin.png": "Twin.png",  # of two it is not known which one is meant
        "0/twin.png": "twin.png",
    }
    (missing,) = [one for one in entries(folder / "list.jsonl") if one.place.size == MISSING]
    assert missing.id == "0/Twin.png"


def test_path_of_another_system_leads_out_no_more_than_others(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    for name in ("..\\secret.png", "..\\SECRET.PNG"):
        (folder / "list.jsonl").write_text(json.dumps({"path": name}))
        (entry,) = entries(folder / "list.jsonl")
        assert entry.place.size == MISSING


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_files_of_other_formats_are_told_and_texts_are_not(folder: Path, suffix: str) -> None:
    for name in ("0/IMG_1.HEIC", "0/IMG_2.heic", "b.avif", "c.jp2", "d.txt", "Thumbs.db"):
        (folder / name).write_bytes(b"no matter")
    source = folder
    if suffix:
        source = folder.with_suffix(suffix)
        with tarfile.open(source, "w") as file:
            for path in sorted(folder.rglob("*")):
                file.add(path, path.relative_to(folder), recursive=False)
    left_out = LeftOut()
    found = list(open_source(source).entries(folder, left_out))
    assert len(found) == 5
    others = [one.name for one in left_out.of(Reason.other_format)]
    assert others == ["0/IMG_1.HEIC", "0/IMG_2.heic", "b.avif", "c.jp2"]
    assert left_out.counts(Reason.other_format) == "4: 2 .heic, 1 .avif, 1 .jp2"
    assert [one.name for one in left_out.of(Reason.not_an_image)] == ["d.txt", "notes.txt"]
    assert [one.name for one in left_out.of(Reason.system_file)] == ["Thumbs.db"]
    (said,) = left_out.sentences
    assert "find FOLDER -iname '*.HEIC' -exec magick mogrify -format jpg {} +" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b'{"path": "0/x.png"}\n{"path": ',
            r"line 2 is not JSON .*\. Write one object in each line",
        ),
        (b'{"path": "0/x.png", "label": 1.0}', "label is 1.0; wanted text or a whole number"),
        (b'{"path": "file:///x.png"}', "list.jsonl, line 1: .*: file:///x.png cannot be read"),
        (b'{"path": "0/x.png"}\n[1]\n', "line 2 is .*; wanted an object"),
        (b'{"path": 1.5}', "path is 1.5; wanted text"),
        (b'{"path": "0/x.png", "price": NaN}', "line 1 is not JSON"),
        (b'{"path": "\xff.png"}', "is not UTF-8"),
        (b'{"path": "0/x.png", "group": ["a"]}', r"line 1: group is \['a'\]; wanted text"),
        (b'{"path": "0/x.png", "source": 1.5}', "line 1: source is 1.5; wanted text"),
        (b'{"x": %s}' % (b"[" * 9999), "line 1 is not JSON"),
        (b'{"path": "0/x.png", "metadata": "%s"}' % (b"[" * 9999), "metadata is not JSON"),
        (b'{"path": "\\ud83d.png"}', r"line 1: '\\ud83d' in '\\ud83d.png' is no Unicode"),
        (b'{"path": "\\ud83d/x.png"}', "not a valid file name"),
        (b'{"path": "0/x.png", "id": "\\udce9"}', "line 1: .* is no Unicode"),
        (b'{"path": "0/x.png", "label": "\\udce9"}', "line 1: .* is no Unicode"),
        (b'{"path": "t\\udcffp.jpg", "id": "x"}', "file name, rename the file"),
    ],
)
def test_a_wrong_json_line_is_named(folder: Path, content: bytes, said: str) -> None:
    path = folder / "list.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=said):
        entries(path)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 10**12], pa.timestamp("s")),
        pa.array([[], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
    ],
)
@pytest.mark.parametrize("beside", ["path", "image", "vector"])
def test_a_value_that_python_does_not_have_is_said(
    tmp_path: Path, column: pa.Array, beside: str
) -> None:
    values = {"path": ["x.png", "y.png"], "image": [b"x", b"y"], "vector": [[1.0], [2.0]]}
    parquet.write_table(pa.table({beside: values[beside], "x": column}), tmp_path / "of.parquet")
    opens = partial(open_vectors, items=None) if beside == "vector" else open_source
    with pytest.raises(DatasetError, match=r"of.parquet.*(out of range|duplicate key was)"):
        list(opens(tmp_path / "of.parquet").entries(tmp_path, LeftOut()))


@pytest.mark.parametrize("vector", [["a"], [[1.0]]])
def test_a_vector_has_numbers(tmp_path: Path, vector: list[object]) -> None:
    parquet.write_table(pa.table({"vector": [vector]}), tmp_path / "of.parquet")
    with pytest.raises(DatasetError, match=r"of.parquet cannot be read"):
        open_vectors(tmp_path / "of.parquet", None)


def test_links_that_lead_out_are_refused_unless_meant(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "secret.png").write_bytes(b"secret")
    (folder / "0" / "v.png").symlink_to(outside / "secret.png")
    with pytest.raises(DatasetError, match=r"0/v.png leads to .*elsewhere/secret.png"):
        entries(folder)
    (meant,) = [one for one in entries(folder, root=tmp_path) if one.id == "0/v.png"]
    assert bytes_of(meant.place, ImageLimits()) == b"secret"


def test_a_folder_behind_a_link_is_refused_too(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "secret.png").write_bytes(b"secret")
    (folder / "door").symlink_to(outside)
    left_out = LeftOut()
    found = list(open_source(folder).entries(folder, left_out))
    assert "door/secret.png" not in [entry.id for entry in found]
    assert [one.name for one in left_out.of(Reason.linked_folder)] == ["door"]
    assert "door/secret.png" in [entry.id for entry in entries(folder, root=tmp_path)]
    path = folder / "list.csv"
    path.write_text("path\ndoor/secret.png\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="outside"):
        entries(path)


def test_folder_with_a_name_that_is_no_text_leaves_it_out(folder: Path) -> None:
    (folder / "top.JPG").rename(folder / os.fsdecode(b"t\xffp.jpg"))
    left_out = LeftOut()
    assert len(list(open_source(folder).entries(folder, left_out))) == 4
    assert [one.name for one in left_out.of(Reason.bad_name)] == [r"t\udcffp.jpg"]


def test_archive_with_a_name_that_is_no_text_leaves_it_out(tmp_path: Path) -> None:
    path = tmp_path / "old.tar"
    with tarfile.open(path, "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as file:
        file.addfile(tarfile.TarInfo("é.png"))
    left_out = LeftOut()
    assert not list(open_source(path).entries(tmp_path, left_out))
    assert [one.name for one in left_out.of(Reason.bad_name)] == [r"\udce9.png"]


def test_a_file_that_is_not_taken_may_have_a_name_that_is_no_text(folder: Path) -> None:
    (folder / os.fsdecode(b"t\xffp.heic")).touch()
    left_out = LeftOut()
    list(open_source(folder).entries(folder, left_out))
    assert [one.name for one in left_out.files] == ["notes.txt", r"t\udcffp.heic"]
    assert left_out.sentence.encode()  # as it is printed, and reported


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_archive_is_refused(
    folder: Path, tmp_path: Path, suffix: str, damage: str
) -> None:
    archive = tmp_path / f"images.{suffix}"
    (folder / "0" / "x.png").write_bytes(os.urandom(50_000))
    with tarfile.open(archive, TAR_MODES[suffix]) as file:
        file.add(folder / "0" / "x.png", "0/x.png")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"no archive" * 1000)
    with pytest.raises(DatasetError, match="is not a complete tar file"):
        entries(archive, tmp_path)


NOISE = np.random.default_rng(0).bytes(9_000)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.tar",
            gzip.compress(bytes(1024), mtime=0),
            r"It is compressed data \(gzip\): unpack it",
        ),
        ("a.tar", b"PK\x03\x04" + bytes(2000), "It is a ZIP archive: unpack it"),
        ("a.tar.gz", b"PK\x03\x04" + bytes(2000), "It is a ZIP archive: unpack it"),
        ("a.tar.gz", gzip.compress(NOISE, mtime=0)[:-99], r"header'\)\)\. Copy it again"),
        ("a.csv", b"<html><body>404</body></html>", "not a manifest. It is an HTML page"),
        ("a.csv", b"PK\x03\x04" + bytes(100), "not a manifest. It is a ZIP archive"),
        ("a.csv", b"PK\x03\x04\n" + b"\xff" * 100, "not a manifest. It is a ZIP archive"),
        ("a.jsonl", b"PK\x03\x04\xff", "not a manifest. It is a ZIP archive"),
        ("a.csv", b"path\n\xff.png", "not UTF-8 text"),
    ],
)
def test_content_of_a_file_with_a_wrong_suffix_is_named(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=said) as refused:
        entries(tmp_path / name, tmp_path)
    assert "\n" not in str(refused.value)
    (tmp_path / "empty.csv").write_text("path\n")
    assert entries(tmp_path / "empty.csv") == []


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_compressed_archive_is_unpacked_only_where_the_disk_has_space(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int, fits: bool
) -> None:
    """A tenth of the free space stays free; what was begun is removed."""
    archive, scratch = tmp_path / "bomb.tar.xz", tmp_path / "scratch"
    scratch.mkdir()
    (folder / "0" / "x.png").write_bytes(bytes(3 * 2**20))
    with tarfile.open(archive, "w:xz") as file:
        file.add(folder / "0" / "x.png", "0/x.png")
    with tarfile.open(archive) as file:
        size = 10 * 1024 * math.ceil((file.getmember("0/x.png").size + 512 + 1024) / 10 / 1024)
    free = next(n for n in range(size, 2 * size) if n - n // 10 == size + spare)
    usage = shutil.disk_usage(tmp_path)

    def disk_usage(_: object) -> object:
        taken = sum(path.stat().st_size for path in scratch.iterdir())
        return usage._replace(free=free - taken)

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    if fits:
        assert told(entries(archive, scratch)) == [("0/x.png", "0", {})]
    else:
        with pytest.raises(DatasetError, match=r"bomb\.tar\.xz needs more than .* unpacked"):
            entries(archive, scratch)
        assert not [*scratch.iterdir()]


def test_a_manifest_of_this_machine_may_name_the_web(folder: Path) -> None:
    path, url = folder / "list.csv", "https://shop.example/a.png"
    path.write_text(f"path\n{url}\n", encoding="utf-8")
    assert [one.place for one in entries(path)] == [Place(url, None, 0, 0)]
    path.write_text("path\nftp://shop.example/a.png\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="ftp"):
        entries(path)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("https://shop.example/of/boots.tar.gz?signature=1", "boots"),
        ("s3://bucket/of/boots", "boots"),
        (Path("/of/boots.csv"), "boots"),
        (Path("/of/v1.2"), "v1.2"),
        (".", Path.cwd().name),
    ],
)
def test_a_gallery_is_called_as_its_source(source: Path | str, name: str) -> None:
    assert name_of(source) == name


def damaged_tables(sound: bytes) -> dict[str, bytes]:
    schema = sound.index(b"ARROW:schema")
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    return {
        "truncated": sound[:-50],
        "empty": b"",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "page": b"<!DOCTYPE html><title>404</title>",
        "footer": sound[:footer] + bytes(len(sound) - footer - 8) + sound[-8:],
        "schema": sound[: schema + 20] + b"A" * 16 + sound[schema + 36 :],
        "pages": sound[:4] + bytes(60) + sound[64:],
    }


@pytest.mark.parametrize("column", ["mean", "image", "path"])
def test_damaged_parquet_is_named_at_every_door(tmp_path: Path, column: str) -> None:
    value = {"mean": [0.5, 1.0], "image": b"picture", "path": "a.png"}[column]
    parquet.write_table(pa.table({column: [value] * 50}), tmp_path / "sound.parquet")
    sound = (tmp_path / "sound.parquet").read_bytes()
    for name, content in damaged_tables(sound).items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=f"{name}.parquet is not a Parquet file, or is trun"):
            _ = open_table(path) if is_of_vectors(path) else entries(path)


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    for name, advice in (
        ("list.xlsx", "Export it as CSV"),
        ("images.ZIP", "Unpack it"),
        ("owl.jpg", "Name the folder"),
    ):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DatasetError, match=rf"neither a folder nor one of \.csv.*\. {advice}"):
            open_source(tmp_path / name)
    with pytest.raises(DatasetError, match="does not exist"):
        open_source(tmp_path / "nothing")
    (tmp_path / "manifest").write_bytes(b" " * 63 + b"{}")
    assert open_source(tmp_path / "manifest")  # what begins like JSON
    (tmp_path / "manifest").write_bytes(b" " * 64 + b"{}")
    with pytest.raises(DatasetError, match="neither a folder"):
        open_source(tmp_path / "manifest")
    (tmp_path / "vectors.npy").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"vectors.npy holds vectors.* use --vectors instead of"):
        open_source(tmp_path / "vectors.npy")
    (tmp_path / "list.parquet").write_bytes(b"no parquet")
    with pytest.raises(DatasetError, match="is not a Parquet file"):
        entries(tmp_path / "list.parquet")

"""What data sets come as: boxes, COCO, webdataset, and Parquet with the images in it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from index_builder.datasets.image_files import LeftOut, Reason
from index_builder.indexing.blocks import Block, Entry
from index_builder.indexing.collection import Indexing, index_collection
from index_builder.indexing.prepare import prepare_files, read_again
from index_builder.indexing.sources import open_source
from index_builder.indexing.sources.tables import image_column
from model_store.bundles.bundle import open_bundle
from model_store.errors import DatasetError
from model_store.images import Preprocessing

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def entries(source: Path, scratch: Path, **options: Any) -> list[Entry]:
    return list(open_source(source, **options).entries(scratch, LeftOut()))


def striped() -> Image.Image:
    """Three stripes of 20 × 30 pixels, red, green and blue."""
    stripes = [np.full((30, 20, 3), colour, np.uint8) for colour in COLOURS.values()]
    return Image.fromarray(np.concatenate(stripes, axis=1))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def prepared(found: list[Entry]) -> list[tuple[int, int, int] | str]:
    """The middle pixel of each entry as the encoder sees it, or why there is none."""
    block = Block(0, tuple(one.id for one in found), tuple(one.place for one in found))
    made = prepare_files(block, Preprocessing(8, 8, decoding="reduced"))
    return [
        made.failures[one.id].reason
        if one.id in made.failures
        else tuple(map(int, made.images[row, 4, 4]))  # type: ignore[misc]
        for row, one in enumerate(found)
    ]


class TestBoxes:
    def write(self, folder: Path, boxes: list[Any], kind: str) -> Path:
        striped().save(folder / "a.png")
        if kind == "csv":
            lines = [f'a.png,"{json.dumps(box)}"' if box else "a.png," for box in boxes]
            (folder / "list.csv").write_text("\n".join(["path,bbox", *lines]))
        elif kind == "jsonl":
            lines = [json.dumps({"path": "a.png", "bbox": box}) for box in boxes]
            (folder / "list.jsonl").write_text("\n".join(lines))
        else:
            rows = {"path": ["a.png"] * len(boxes), "bbox": boxes}
            parquet.write_table(pa.table(rows), folder / "list.parquet")
        return folder / f"list.{kind}"

    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
    def test_each_is_an_image_of_its_own(self, kind: str, tmp_path: Path) -> None:
        boxes = [[0, 0, 20, 30], [20, 0, 20, 30], [40.5, 3, 900, 900], None]
        found = entries(self.write(tmp_path, boxes, kind), tmp_path)
        assert [one.id for one in found] == [
            "a.png#0,0,20,30",
            "a.png#20,0,20,30",
            "a.png#40.5,3,900,900",
            "a.png",
        ]
        red, green, blue, _ = prepared(found)
        assert (red, green, blue) == tuple(COLOURS.values())
        assert read_again(found[2].place, 16).shape == (27, 20, 3)
        block = Block(0, tuple(one.id for one in found), tuple(one.place for one in found))
        made = prepare_files(block, Preprocessing(8, 8))
        assert len(set(made.hashes)) == 4
        assert all(one is not None for one in made.thumbnails)

    def test_one_outside_costs_its_own_item_alone(self, tmp_path: Path) -> None:
        found = entries(self.write(tmp_path, [[60, 0, 5, 5], [0, 0, 9, 9]], "jsonl"), tmp_path)
        outside, inside = prepared(found)
        assert "lies outside the image of 60 × 30 pixels" in str(outside)
        assert inside == COLOURS["red"]
        beside = entries(self.write(tmp_path, [[-5, 0, 2, 5], [0, -5, 5, 2]], "jsonl"), tmp_path)
        assert ["lies outside" in str(one) for one in prepared(beside)] == [True, True]

    @pytest.mark.parametrize(
        "box",
        [
            [1, 2, 3],
            "x",
            [0, 0, 0, 5],
            [0, 0, 5, 0],
            [0, 0, 5, -1],
            {"x": 1},
            [0, 0, "a", 1],
            7,
            [0, 0, 10**400, 3],
        ],
    )
    def test_what_is_none_is_said(self, box: Any, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"list.jsonl, line 1: the box is .* wanted \[left"):
            entries(self.write(tmp_path, [box], "jsonl"), tmp_path)

    @pytest.mark.parametrize(
        ("box", "shape"),
        [
            ((0.9, 0.9, 1.2, 1.2), (3, 3, 3)),  # every pixel that it touches
            ((-5, -5, 8, 7), (2, 3, 3)),
            ((0, 0, 2, 2), (2, 2, 3)),
            ((59, 29, 1, 1), (1, 1, 3)),
        ],
    )
    def test_it_takes_every_pixel_that_it_touches(
        self, box: tuple[float, float, float, float], shape: tuple[int, int, int], tmp_path: Path
    ) -> None:
        found = entries(self.write(tmp_path, [list(box)], "jsonl"), tmp_path)
        assert read_again(found[0].place, 4).shape == shape


class TestCoco:
    CONTENT: Mapping[str, Any] = {
        "images": [{"id": 7, "file_name": "in/a.png"}],
        "categories": [{"id": 1, "name": "warm"}, {"id": 2, "name": "cold"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 1, "bbox": [0, 0, 20, 30], "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 2, "bbox": [40, 0, 20, 30]},
            {"id": 3, "image_id": 7, "category_id": 2, "bbox": [0, 0, 9, 9], "iscrowd": 1},
        ],
    }

    def write(self, folder: Path, content: Any) -> Path:
        (folder / "in").mkdir(exist_ok=True)
        striped().save(folder / "in" / "a.png")
        (folder / "instances.json").write_text(json.dumps(content))
        return folder / "instances.json"

    def test_each_box_is_an_item(self, tmp_path: Path) -> None:
        found = entries(self.write(tmp_path, self.CONTENT), tmp_path)
        assert [(one.id, one.label, one.group) for one in found] == [
            ("in/a.png#1", "warm", "in/a.png"),
            ("in/a.png#2", "cold", "in/a.png"),
        ]
        assert found[1].metadata == {"image": "in/a.png", "bbox": [40.0, 0.0, 20.0, 30.0]}
        assert prepared(found) == [COLOURS["red"], COLOURS["blue"]]

    def test_crowds_and_images_without_boxes_are_counted(self, tmp_path: Path) -> None:
        images = [*self.CONTENT["images"], {"id": 8, "file_name": "in/b.png"}]
        path, left_out = self.write(tmp_path, {**self.CONTENT, "images": images}), LeftOut()
        assert len(list(open_source(path).entries(tmp_path, left_out))) == 2
        assert [(one.name, one.reason) for one in left_out.files] == [
            ("instances.json, annotation 2", Reason.crowd),
            ("in/b.png", Reason.no_box),
        ]

    def test_categories_may_be_left_out(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        content = {name: self.CONTENT[name] for name in ("images", "annotations")}
        found = entries(self.write(tmp_path, content), tmp_path)
        assert [one.label for one in found] == [None, None]
        said = "instances.json has no `categories`, so its boxes are indexed without labels.\n"
        assert capsys.readouterr().err == said
        entries(self.write(tmp_path, content), tmp_path, labelled=False)
        entries(self.write(tmp_path, self.CONTENT), tmp_path)
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize("name", ["  ", None])
    def test_a_category_of_spaces_is_no_label(self, name: str | None, tmp_path: Path) -> None:
        categories = [{"id": 1, "name": name}, {"id": 2, "name": "cold"}]
        content = {**self.CONTENT, "categories": categories}
        found = entries(self.write(tmp_path, content), tmp_path)
        assert [one.label for one in found] == [None, "cold"]

    def test_without_labels_categories_are_metadata(self, tmp_path: Path) -> None:
        found = entries(self.write(tmp_path, self.CONTENT), tmp_path, labelled=False)
        assert [one.label for one in found] == [None, None]
        assert [one.metadata["label"] for one in found] == ["warm", "cold"]

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"images": None}, "is not in COCO's format"),
            ({"annotations": [{"id": 1}]}, "annotation 0 is not in .* KeyError: 'image_id'"),
            (
                {"images": [{"id": 7, "file_name": "a.png"}, {}]},
                "`images` 1 is not .* KeyError: 'id'",
            ),
            ({"images": [{"id": 7, "file_name": None}]}, "the image 7, whose file_name is empty"),
            (
                {"annotations": [{"id": 1, "image_id": 8, "bbox": [0, 0, 1, 1]}]},
                "annotation 0 names the image 8, which `images` does not have",
            ),
            (
                {"annotations": [{"id": 1, "image_id": "7", "bbox": [0, 0, 1, 1]}]},
                "annotation 0 names the image '7', which `images` does not have",
            ),
            (
                {"annotations": [{"id": 1, "image_id": 7, "bbox": None}]},
                "annotation 0: the box is None; wanted",
            ),
            (
                {"annotations": [{"id": 1, "image_id": 7, "bbox": [0, 0, 1]}]},
                "annotation 0: the box",
            ),
            ({"images": [{"id": 7, "file_name": "../a.png"}]}, "outside"),
            (
                {"images": [{"id": 7, "file_name": name} for name in ("a.png", "b.png")]},
                "two records of `images` have the id 7: 'a.png' and 'b.png'",
            ),
            (
                {"categories": [{"id": 1, "name": name} for name in ("cat", "dog")]},
                "two records of `categories` have the id 1: 'cat' and 'dog'",
            ),
            ({"categories": [{"id": 1, "name": "cat"}]}, "annotation 1: the category 2 is not in"),
        ],
    )
    def test_what_is_none_is_said(
        self, change: Mapping[str, Any], reason: str, tmp_path: Path
    ) -> None:
        with pytest.raises(DatasetError, match=reason):
            entries(self.write(tmp_path, {**self.CONTENT, **change}), tmp_path)

    @pytest.mark.parametrize("content", ["[]", "{", '{"images": []}', '{"annotations": []}'])
    def test_another_file_called_json(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(
            DatasetError, match=r"a.json is (not JSON|neither an IIIF manifest nor a COCO file)"
        ):
            entries(tmp_path / "a.json", tmp_path)


class TestParquetImages:
    HUGGING_FACE: Mapping[bytes, bytes] = {
        b"huggingface": json.dumps(
            {
                "info": {
                    "features": {
                        "label": {"names": ["nought", "one"], "_type": "ClassLabel"},
                        "year": {"dtype": "int64", "_type": "Value"},
                        "boxes": [{"dtype": "float32", "_type": "Value"}],
                    }
                }
            }
        ).encode()
    }

    def write(self, folder: Path, n: int = 3, name: str = "train-0.parquet", **more: Any) -> Path:
        images = [
            {"bytes": png(Image.new("RGB", (9, 9), (n, row, 0))), "path": f"{name}-{row}.png"}
            for row in range(n)
        ]
        labels = [row % 2 for row in range(n)]
        table = pa.table({"image": images, "label": labels, "year": [2000] * n, **more})
        folder.mkdir(exist_ok=True, parents=True)
        parquet.write_table(table.replace_schema_metadata({**self.HUGGING_FACE}), folder / name)
        return folder / name

    def test_the_shards_of_a_data_set(self, tmp_path: Path) -> None:
        root = tmp_path / "digits"
        self.write(root / "data", 3, "train-0.parquet")
        self.write(root / "data", 2, "train-1.parquet")
        found = entries(root, tmp_path)
        assert [(one.id, one.label) for one in found] == [
            ("train-0.parquet-0.png", "nought"),
            ("train-0.parquet-1.png", "one"),
            ("train-0.parquet-2.png", "nought"),
            ("train-1.parquet-0.png", "nought"),
            ("train-1.parquet-1.png", "one"),
        ]
        assert {one.metadata["year"] for one in found} == {2000}
        assert prepared(found) == [(3, 0, 0), (3, 1, 0), (3, 2, 0), (2, 0, 0), (2, 1, 0)]
        unpacked = Path(found[0].place.path).stat().st_ino
        assert entries(root, tmp_path) == found  # unpacked already
        assert prepared(found)[0] == (3, 0, 0)
        assert unpacked == Path(found[0].place.path).stat().st_ino
        assert {one.label for one in entries(root, tmp_path, labelled=False)} == {None}
        changed = self.write(root / "data", 4, "train-1.parquet")
        assert len(entries(root, tmp_path)) == 7
        assert prepared(entries(root, tmp_path))[-1] == (4, 3, 0)
        assert changed.exists()

    def test_columns_mean_what_they_mean_in_a_manifest(self, tmp_path: Path) -> None:
        more: dict[str, Any] = {
            "id": ["x", "y", "z"],
            "group": ["g", "g", None],
            "bbox": [[0.0, 0.0, 4.0, 4.0], None, None],
        }
        path = self.write(tmp_path, **more)
        found = entries(path, tmp_path, labelled=False)
        assert [one.id for one in found] == ["x", "y", "z"]
        assert [one.group for one in found] == ["g", "g", None]
        assert found[0].place.box == (0.0, 0.0, 4.0, 4.0)
        assert found[0].metadata == {"year": 2000, "label": "nought"}
        pairs = pa.array([[("price", 3)]], pa.map_(pa.string(), pa.int64()))
        parquet.write_table(pa.table({"image": [b"1"], "metadata": pairs}), path)
        assert [one.metadata for one in entries(path, tmp_path)] == [{"price": 3}]

    def test_a_class_without_a_name_is_no_label_or_refused(self, tmp_path: Path) -> None:
        def labelled(number: int) -> Path:
            table = pa.table({"image": [png(striped())], "label": [number]})
            table = table.replace_schema_metadata({**self.HUGGING_FACE})
            parquet.write_table(table, tmp_path / "a.parquet")
            return tmp_path / "a.parquet"

        assert [one.label for one in entries(labelled(-1), tmp_path)] == [None]
        for number in (-2, 2):
            with pytest.raises(DatasetError, match=f"row 0: 'label' is class {number}, but"):
                entries(labelled(number), tmp_path)

    def test_plain_bytes_and_missing_images(self, tmp_path: Path) -> None:
        pictures = [png(striped()), None, png(striped()), None]
        parquet.write_table(pa.table({"picture": pictures}), tmp_path / "plain.parquet")
        found = entries(tmp_path / "plain.parquet", tmp_path)
        assert [one.id for one in found] == [f"plain#{row}" for row in range(4)]
        first, second, third, last = prepared(found)
        np.testing.assert_allclose(np.array([first, third]), [COLOURS["green"]] * 2, atol=3)
        assert "row has no image" in str(second)  # it is not the one after it
        assert "row has no image" in str(last)
        assert [one.place.size for one in found] == [len(png(striped())), -1] * 2

    def test_a_file_that_is_gone_since_moves_no_image_to_another_row(self, tmp_path: Path) -> None:
        root = tmp_path / "digits"
        first, second = self.write(root, 3, "0.parquet"), self.write(root, 2, "1.parquet")
        os.utime(first, ns=(0, second.stat().st_mtime_ns - 10**9))
        assert prepared(entries(root, tmp_path))[3:] == [(2, 0, 0), (2, 1, 0)]
        first.unlink()
        assert prepared(entries(root, tmp_path)) == [(2, 0, 0), (2, 1, 0)]
        assert len(list(tmp_path.glob("*.images"))) == 1

    def test_an_image_can_be_read_as_soon_as_it_is_named(self, tmp_path: Path) -> None:
        source = open_source(self.write(tmp_path))
        for row, one in enumerate(source.entries(tmp_path, LeftOut())):
            assert prepared([one]) == [(3, row, 0)]

    @pytest.mark.parametrize(
        ("columns", "wanted"),
        [
            ({"a": pa.int64(), "b": pa.binary()}, "b"),
            ({"a": pa.large_binary(), "image": pa.binary()}, "image"),
            ({"a": pa.struct({"bytes": pa.binary(), "path": pa.string()})}, "a"),
            ({"a": pa.struct({"bytes": pa.string()}), "b": pa.struct({"path": pa.string()})}, None),
            ({"a": pa.binary(), "path": pa.string()}, None),  # a manifest
            ({"a": pa.list_(pa.binary()), "b": pa.string()}, None),
        ],
    )
    def test_images_are_bytes(self, columns: dict[str, pa.DataType], wanted: str | None) -> None:
        assert image_column(pa.schema(columns)) == wanted

    def test_a_file_of_a_data_set_without_images_is_refused(self, tmp_path: Path) -> None:
        self.write(tmp_path, name="a.parquet")
        parquet.write_table(pa.table({"year": [1]}), tmp_path / "b.parquet")
        with pytest.raises(DatasetError, match=r"b.parquet has no image column; .* are year"):
            entries(tmp_path, tmp_path)

    def test_a_truncated_one(self, tmp_path: Path) -> None:
        path = self.write(tmp_path)
        path.write_bytes(path.read_bytes()[:-50])
        with pytest.raises(DatasetError, match="is not a Parquet file"):
            entries(path, tmp_path)

    @pytest.mark.slow
    def test_it_becomes_the_same_gallery_as_a_folder(
        self, indexing: Indexing, drawings: Path, tmp_path: Path
    ) -> None:
        files = sorted(drawings.rglob("*.png"))[:80]
        rows = {
            "image": [
                {"bytes": one.read_bytes(), "path": one.relative_to(drawings).as_posix()}
                for one in files
            ],
            "label": [one.parent.name for one in files],
        }
        parquet.write_table(pa.table(rows), tmp_path / "all.parquet")
        by_parquet = replace(indexing, source=open_source(tmp_path / "all.parquet"))
        bundle = open_bundle(index_collection(by_parquet).bundle, "cpu")
        gallery = bundle.retriever.gallery
        assert gallery.n_items == len(files)
        answer = bundle.retriever.search(files[3].read_bytes(), limit=1)
        assert answer.matches[0].id == files[3].relative_to(drawings).as_posix()
        assert answer.matches[0].similarity == pytest.approx(1, abs=1e-6)

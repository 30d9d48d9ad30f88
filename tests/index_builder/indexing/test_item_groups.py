"""An item that is a calibration query does not find the other items of its group."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.collection import Indexing, index_collection
from index_builder.indexing.sources import open_source
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.kept_queries import CalibrationInputs
from tests.support.narrowing import not_none

At = Callable[[Path], Indexing]

N_OBJECTS = 120


def write_objects(root: Path) -> Path:
    """A manifest of four photographs of each object; objects 0 to 11 have a label of two objects.

    The first two objects' photographs bear two labels by turns, as a pair of shoes that was filed
    in two places, and one of the third's has no label.
    """
    data = load_digits()
    rows = []
    for thing in range(N_OBJECTS):
        digit = int(data.target[thing])
        label = f"rare {thing // 2}" if thing < 12 else str(digit)
        for view in range(4):
            pixels = np.roll(data.images[thing] * (255 / 16), view - 2, axis=view % 2)
            name = f"{thing:03d}-{view}.png"
            Image.fromarray(pixels.round().astype(np.uint8)).save(root / name)
            own = label
            if thing in {20, 21}:
                own = "both" if view % 2 else label
            if (thing, view) == (22, 0):
                own = ""
            rows.append((name, own, f"object {thing}", "shop" if thing % 3 else "museum"))
    path = root / "list.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "label", "group", "source"), *rows])
    return path


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    root = tmp_path / "objects"
    root.mkdir()
    return write_objects(root)


def recall_outside_groups(bundle: Bundle, group_of: Callable[[str], str]) -> float:
    """The recall of the bundle's calibration queries, each compared with the other groups."""
    gallery, kept = bundle.retriever.gallery, not_none(CalibrationInputs.load(bundle.directory))
    rows = np.arange(gallery.n_items)
    items, directions = gallery.items(rows), gallery.directions(rows)
    groups = np.array([group_of(item.id) for item in items])
    labels = np.array([item.label or "" for item in items])
    of_queries = [gallery.row(item_id) for item_id in kept.matched.ids]
    similarities = directions[of_queries] @ directions.T
    similarities[groups[of_queries][:, None] == groups] = -2
    return float((labels[similarities.argmax(axis=1)] == labels[of_queries]).mean())


def test_no_query_finds_its_group_of_the_manifest(objects: Path, at: At) -> None:
    outcome = index_collection(replace(at(objects), calibrate=True))
    bundle = open_bundle(outcome.bundle.parent, "cpu", threads=1)
    rows = list(csv.DictReader(objects.read_text(encoding="utf-8").splitlines()))
    group_of = {row["path"]: row["group"] for row in rows}
    assert outcome.n_items == len(rows)
    matched = not_none(CalibrationInputs.load(bundle.directory)).matched
    asked = matched.ids
    # One photograph of object 22 has no label; it would be a wrong result of the others.
    assert set(asked) == {name for name in group_of if group_of[name] != "object 22"}
    named = {(group_of[name], group) for name, group in zip(asked, matched.groups, strict=True)}
    assert len(named) == len(dict(named)) == len({group for _, group in named})
    calibration = not_none(bundle.retriever.calibration)
    assert sorted(calibration.evidence.source_names) == ["museum", "shop"]
    assert calibration.evidence.absence == "hidden_labels"  # the encoder has not learned them
    of_queries = calibration.evidence.clusters[: len(asked)]
    assert len(set(of_queries.tolist())) == len({group_of[name] for name in asked})
    said = calibration.report["cross_fitted"]["recall_at_1"]
    assert said == pytest.approx(recall_outside_groups(bundle, group_of.__getitem__), abs=0.005)


def test_no_query_finds_its_near_duplicates(at: At, tmp_path: Path) -> None:
    root = tmp_path / "photographs"
    cells = [
        photograph[top : top + 66, left : left + 75]
        for photograph in load_sample_images().images
        for top in range(0, 360, 33)
        for left in range(0, 560, 37)
    ]
    for number, cell in enumerate(cell for cell in cells if cell.std() > 55):
        folder = root / str(number % 4)
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(cell)
        picture.save(folder / f"{number:03d}-0.png")
        picture.save(folder / f"{number:03d}-1.jpg", quality=60)
        picture.resize((150, 132)).save(folder / f"{number:03d}-2.jpg", quality=80)
    outcome = index_collection(replace(at(root), calibrate=True))
    bundle = open_bundle(outcome.bundle.parent, "cpu", threads=1)
    said = not_none(bundle.retriever.calibration).report["cross_fitted"]["recall_at_1"]
    true = recall_outside_groups(bundle, lambda item_id: Path(item_id).name.split("-")[0])
    assert said == pytest.approx(true, abs=0.02)
    assert said < 0.8 < recall_outside_groups(bundle, str), "versions of one picture are alike"


def test_a_group_in_a_json_manifest_of_some_images_is_enough(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.png", "label": "ab"[i % 2]} | ({"group": 7} if i < 6 else {})
            for i in range(20)]  # fmt: skip
    path = tmp_path / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = open_source(path).entries(tmp_path, LeftOut())
    assert {entry.group for entry in found} == {"7", None}

"""What is held out of a collection: whole groups, on one side each."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.catalogue import Catalogue, chosen
from index_builder.indexing.collection import Indexing, index_collection
from index_builder.indexing.sources import open_source
from model_store.bundles.bundle import Bundle, open_bundle
from tests.support.collection_files import lines
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


def opened(indexing: Indexing) -> Bundle:
    return open_bundle(indexing.bundles, "cpu", threads=1)


def test_no_group_of_a_manifest_is_on_both_sides(objects: Path, at: At) -> None:
    indexing = replace(at(objects), calibrate=True)
    outcome = index_collection(indexing)
    bundle = opened(indexing)
    gallery = bundle.retriever.gallery
    rows = list(csv.DictReader(objects.read_text(encoding="utf-8").splitlines()))
    group_of = {row["path"]: row["group"] for row in rows}
    label_of = {row["path"]: row["label"] for row in rows}
    asked = [line["id"] for line in lines(indexing.directory / "held_out.jsonl")]
    kept = [item.id for item in gallery.items(np.arange(gallery.n_items))]
    assert not {group_of[name] for name in asked} & {group_of[name] for name in kept}
    assert len(asked) == outcome.n_held_out == pytest.approx(len(rows) / 5, rel=0.2)
    assert {label_of[name] for name in asked} <= {label_of[name] for name in kept}
    assert not any(group_of[name] == "object 22" for name in asked)  # one has no label
    rare = {label_of[name] for name in asked if label_of[name].startswith("rare")}
    assert len(rare) == 2  # of six labels of two objects, about two in five
    evidence = not_none(bundle.retriever.calibration).evidence
    assert sorted(evidence.source_names) == ["museum", "shop"]
    assert evidence.absence == "hidden_labels"  # of an encoder that has not learned them
    of_queries = evidence.clusters[: len(asked)]
    assert len(set(of_queries.tolist())) == len({group_of[name] for name in asked})


def test_what_is_foretold_is_held_out(objects: Path, at: At, tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "c.sqlite", open_source(objects).entries(tmp_path, LeftOut()))
    foretold = catalogue.n_to_hold_out()
    catalogue.close()
    outcome = index_collection(replace(at(objects), calibrate=True))
    assert abs(outcome.n_held_out - foretold) <= 8  # visited in another order


def test_near_duplicates_stay_together_where_no_group_is_given(at: At, tmp_path: Path) -> None:
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
    indexing = replace(at(root), calibrate=True)
    index_collection(indexing)
    asked = [line["id"] for line in lines(indexing.directory / "held_out.jsonl")]
    versions = defaultdict(set)
    for name in asked:
        versions[name.split("-")[0]].add(name)
    assert len(asked) >= 50
    assert {len(found) for found in versions.values()} == {3}


def test_copies_of_one_image_are_never_asked_and_no_group_is_without_a_label() -> None:
    labels = np.array([0] * 10 + [1] * 10 + [-1])
    groups = np.array([0, 0, *range(1, 9), *range(9, 18), 18, 18])
    contents = np.array([0, *range(20)])  # the first two are copies
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(21)
        out = chosen(labels, groups, contents, order)
        assert not out[:2].any()
        assert not out[-2:].any()
        assert np.bincount(labels[out]).tolist() == [2, 2]
    # Wherever the group without a label stands among the others.
    first = np.arange(20) // 2
    for without in (0, 9):
        out = chosen(np.where(first == without, -1, 0), first, np.arange(20), np.arange(20))
        assert not out[first == without].any()
        assert out.sum() == 4
    # Labels of two images give a fifth together; a group with an unlabelled image gives none.
    pairs = np.arange(10)
    assert chosen(pairs // 2, pairs, pairs, pairs).sum() == 2
    threes = np.arange(30) // 3
    labels = np.where(np.isin(np.arange(30), [0, 3]), -1, 0)
    out = chosen(labels, threes, np.arange(30), np.arange(30))
    assert (out[:6].sum(), out.sum()) == (0, 6)
    alone = np.arange(10)  # a label of one image would be gone from the gallery
    assert not chosen(alone, alone, alone, alone).any()
    nothing = np.empty(0, dtype=np.int64)
    assert len(chosen(nothing, nothing, nothing, nothing)) == 0


def test_a_group_in_a_json_manifest_of_some_images_is_enough(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.png", "label": "ab"[i % 2]} | ({"group": 7} if i < 6 else {})
            for i in range(20)]  # fmt: skip
    path = tmp_path / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = open_source(path).entries(tmp_path, LeftOut())
    assert {entry.group for entry in found} == {"7", None}

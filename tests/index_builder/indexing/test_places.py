"""A gallery of places: what was taken near enough is a true match, whatever it is called."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.calibration.retrieval import places_of_items
from index_builder.metrics import calibration_error, reliability
from model_store.bundles.bundle import open_bundle
from model_store.errors import DatasetError
from model_store.gallery import parse_filter
from model_store.messages import message
from model_store.queries import VectorQuery, predictive_of
from model_store.records import Match
from model_store.truth import (
    SameLabel,
    Within,
    apart_from_places,
    place_codes,
    positions_of,
    wgs84,
)
from tests.support.build_command import Done, vouch_build
from tests.support.narrowing import not_none

DEGREE = 111_320.0
"""Metres of longitude at the equator, where the street is."""

ROOT = "bundles/street"
NAMES = ("asked", "later")
N_ITEMS, N_QUERIES, LENGTH, DIM = 300, 200, 3_000.0, 24


def test_a_degree_of_longitude_is_as_long_as_the_ellipsoid_says() -> None:
    """By the formula for the length of a parallel at 60°, and along a meridian at the equator."""
    east = wgs84(np.array([60.0, 60.0]), np.array([24.0, 24.001]))
    assert np.linalg.norm(east[1] - east[0]) == pytest.approx(55.800, abs=0.001)
    north = wgs84(np.array([0.0, 0.001]), np.array([0.0, 0.0]))
    assert np.linalg.norm(north[1] - north[0]) == pytest.approx(110.574, abs=0.001)


def test_both_kinds_of_truth_count_what_they_match() -> None:
    generator = np.random.default_rng(0)
    items, queries = generator.uniform(0, 100, (50, 2)), generator.uniform(0, 100, (9, 2))
    items[3] = queries[2] = np.nan
    near = Within(queries, items, 20.0)
    everything = np.tile(np.arange(50), (9, 1))
    brute = np.linalg.norm(items[None] - queries[:, None], axis=2) <= 20
    np.testing.assert_array_equal(near.matches(np.arange(9), everything), brute)
    np.testing.assert_array_equal(near.counts(), brute.sum(axis=1))
    apart = np.where(brute, np.linalg.norm(items[None] - queries[:, None], axis=2), np.inf)
    nearest = np.where(brute.any(axis=1), apart.argmin(axis=1), -1)
    np.testing.assert_array_equal(near.nearest(), nearest)
    same = SameLabel(np.array([0, 5, -2]), generator.integers(-1, 4, 50))
    matches = same.matches(np.arange(3), everything[:3])
    np.testing.assert_array_equal(same.counts(), matches.sum(axis=1))
    assert not matches[1:].any()


def test_results_near_a_more_similar_result_are_of_its_place() -> None:
    nan = [np.nan, np.nan]
    positions = np.array([[0, 0], [30, 0], [10, 0], nan, [20, 0], [49, 0], nan, [100, 0]], float)
    codes = place_codes(positions, 25.0).tolist()
    assert codes == [-2, -3, -2, -1, -2, -3, -1, -9]
    # A longer list does not change the places of its first results.
    assert place_codes(positions[:4], 25.0).tolist() == codes[:4]


def test_results_are_apart_from_the_first_item_of_each_place() -> None:
    nan = [np.nan, np.nan]
    positions = np.array([[0, 0], [30, 0], [25, 0], nan, [-60, 0]], float)
    apart = apart_from_places(positions, np.array([0, 1, 3, 4]), 25.0).round(9).tolist()
    assert apart == [
        [0, 0.6, 0.5, 1, 1],
        [1, 0, 0.1, 1, 1],  # if the second place matches, the first does not
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0],
    ]


def test_an_invalid_position_of_one_item_harms_no_query() -> None:
    here, invalid = ({"latitude": degrees, "longitude": 0.0} for degrees in (0.0, 91.0))
    fields: list[dict[str, float]] = [here, invalid, {}]
    origins, messages = [f"the item '{n}'" for n in range(3)], list[str]()
    found = positions_of(fields, origins, messages)
    np.testing.assert_allclose(found[0], [6_378_137, 0, 0])
    assert np.isnan(found[1:]).all()
    assert [one.partition(" is 91")[0] for one in messages] == ["the item '1': latitude"]
    with pytest.raises(DatasetError, match="item '1': latitude is 91"):
        positions_of(fields, origins)


def seen(metres: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float32]:
    """Return what an encoder makes of places along a street: near ones look alike."""
    waves = np.arange(1, DIM // 2 + 1) * 2 * np.pi / (4 * LENGTH)
    angles = metres[:, None] * waves
    clean = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    noisy: NDArray[np.float32] = (clean + 0.035 * generator.standard_normal(clean.shape)).astype(
        np.float32
    )
    return noisy


def write(where: Path, name: str, metres: NDArray[np.float64], seed: int) -> None:
    np.save(where / f"{name}.npy", seen(metres, np.random.default_rng(seed)))
    with (where / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "latitude", "longitude"])
        rows = enumerate((metres / DEGREE).tolist())
        writer.writerows([f"{name}-{row:03d}", 0, f"{longitude:.8f}"] for row, longitude in rows)


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of photographs of a street, calibrated with others, some of them from further on.

    Further on is another street, of which the gallery has nothing.
    """
    where = tmp_path_factory.mktemp("street")
    generator = np.random.default_rng(1)
    write(where, "items", np.sort(generator.uniform(0, LENGTH, N_ITEMS)), 2)
    for number, name in enumerate(NAMES):
        here, beyond = (generator.uniform(0, LENGTH, n) for n in (N_QUERIES, N_QUERIES // 2))
        write(where, name, np.r_[here, 1.5 * LENGTH + beyond], 3 + number)
    gallery = ["--gallery", "items.npy", "--gallery-items", "items.csv"]
    asked, later = (["--queries", f"{name}.npy", "--items", f"{name}.csv"] for name in NAMES)
    for arguments in (
        ["index", "items.npy", "--items", "items.csv", "--encoder-name", "it", "--name", "street"],
        ["calibrate", ROOT, *asked, *gallery, "--within", "25", "--max-error", "0.2"],
        ["evaluate", ROOT, *later, "--out", "report.json", "--page", "report.html"],
    ):
        done = vouch_build(*arguments, cwd=where)
        assert done.returncode == 0, done.stderr
    return where


@pytest.mark.process
def test_deleted_items_are_not_evaluated(street: Path, tmp_path: Path) -> None:
    root = tmp_path / "street"
    shutil.copytree(street / ROOT, root, symlinks=True)
    gallery = open_bundle(root, "cpu", threads=1).retriever.gallery
    first, last = (item.id for item in gallery.items(np.array([0, N_ITEMS - 1])))
    for arguments in (
        ["items", "delete", str(root), first],
        ["evaluate", str(root), "--queries", "later.npy", "--items", "later.csv"],
    ):
        done = vouch_build(*arguments, cwd=street)
        assert done.returncode == 0, done.stderr
    gallery = open_bundle(root, "cpu", threads=1).retriever.gallery
    places = places_of_items(gallery)
    assert np.isnan(places[0]).all()
    assert np.isfinite(places[gallery.row(last)]).all()


@pytest.mark.process
def test_places_are_calibrated_measured_and_served(street: Path) -> None:
    bundle = open_bundle(street / "bundles" / "street", "cpu", threads=1)
    calibration = not_none(bundle.retriever.calibration)
    assert calibration.within == 25
    report = json.loads((street / "report.json").read_text())
    stream = report["stream"]
    assert stream["n_present"] + stream["n_absent"] == 3 * N_QUERIES // 2
    # Each item is its own label: by that hardly any first item would be right.
    assert report["recall_at_1"] > 0.9
    assert stream["coverage"] > 0.5
    assert stream["error"] <= calibration.max_error
    # Several items are near enough; the probability is not divided among them.
    assert stream["ece"] < 0.05
    vectors = np.load(street / "later.npy")
    rows = list(csv.DictReader((street / "later.csv").read_text().splitlines()))
    right = []
    for vector, row in zip(vectors[:N_QUERIES:4], rows[:N_QUERIES:4], strict=True):
        predictive = predictive_of(bundle.retriever, VectorQuery(vector))
        first = bundle.retriever.find(predictive, 5).matches[0]
        away = abs(first.metadata["longitude"] - float(row["longitude"])) * DEGREE
        right.append(away <= 25)
    assert np.mean(right) == pytest.approx(report["recall_at_1"], abs=0.15)


@pytest.mark.process
def test_error_bound_is_withdrawn_where_a_filter_divides_a_place(street: Path) -> None:
    retriever = open_bundle(street / ROOT, "cpu", threads=1).retriever
    n_divided = 0
    for vector in np.load(street / "later.npy")[:N_QUERIES:8]:
        predictive = predictive_of(retriever, VectorQuery(vector))
        whole = retriever.find(predictive, 5)
        assert whole.decision.guaranteed
        first, second = (match.id for match in whole.matches[:2])
        for left_out, is_divided in ((second, False), (first, True)):
            where = parse_filter({"id": {"ne": left_out}})
            found = retriever.find(predictive, 5, where=where)
            east = [float(one.matches[0].metadata["longitude"]) for one in (whole, found)]
            if is_divided and abs(east[0] - east[1]) * DEGREE > 25:
                continue  # the next item is of another place
            assert found.decision.guaranteed is not is_divided
            n_divided += is_divided
            if is_divided and found.decision.verdict == "match":
                assert found.decision.reason == message("place_divided_by_filter")
    assert n_divided > 5


@pytest.mark.process
def test_probabilities_of_all_results_of_a_place_are_right(street: Path) -> None:
    retriever = open_bundle(street / ROOT, "cpu", threads=1).retriever
    rows = list(csv.DictReader((street / "later.csv").read_text().splitlines()))
    said: dict[str, list[float]] = {"further": [], "divided": []}
    right: dict[str, list[bool]] = {"further": [], "divided": []}

    def note(kind: str, row: int, matches: Sequence[Match]) -> None:
        for match in matches:
            away = float(match.metadata["longitude"]) - float(rows[row]["longitude"])
            said[kind].append(not_none(match.match_probability))
            right[kind].append(abs(away) * DEGREE <= 25)

    for row, vector in enumerate(np.load(street / "later.npy")[:N_QUERIES]):
        predictive = predictive_of(retriever, VectorQuery(vector))
        whole = retriever.find(predictive, 10)
        note("further", row, whole.matches[1:])
        without = parse_filter({"id": {"ne": whole.matches[0].id}})
        note("divided", row, retriever.find(predictive, 1, where=without).matches)
        by_probability = retriever.find(predictive, 10, order="probability").matches
        of_rest = [not_none(match.match_probability) for match in by_probability[1:]]
        assert of_rest == sorted(of_rest, reverse=True)
    of_further = reliability(np.array(said["further"]), np.array(right["further"]))
    assert calibration_error(of_further) < 0.05, "0.11 if all of a place had its probability"
    assert np.mean(said["divided"]) < np.mean(right["divided"]) + 0.02


@pytest.mark.process
def test_an_item_without_a_position_is_no_match(
    street: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = open_bundle(street / ROOT, "cpu", threads=1).retriever
    queries = (
        predictive_of(retriever, VectorQuery(vector)) for vector in np.load(street / "later.npy")
    )
    predictive, whole = next(
        (query, answer)
        for query in queries
        if (answer := retriever.find(query, 5)).decision.verdict == "match"
    )

    def without_first(fields: list[dict[str, Any]], invalid: list[str]) -> NDArray[np.float64]:
        return positions_of([{}, *fields[1:]], invalid=invalid)

    monkeypatch.setattr("model_store.retriever.positions_of", without_first)
    found = retriever.find(predictive, 5)
    assert [match.id for match in found.matches] == [match.id for match in whole.matches]
    assert found.matches[0].match_probability == 0
    assert found.decision.verdict != "match"
    assert not_none(found.matches[1].match_probability) > 0


def told(done: Done) -> str:
    """Return what a command wrote to standard error, in one line."""
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.process
def test_only_the_place_of_a_query_and_of_an_item_decides(street: Path, tmp_path: Path) -> None:
    """Half of the items have a label; the queries name one item; some queries have no place."""
    shutil.copytree(street, tmp_path, dirs_exist_ok=True)
    heading, *rows = (tmp_path / "items.csv").read_text().splitlines()
    named = [f"{row},{'north' * (number % 2)}" for number, row in enumerate(rows)]
    (tmp_path / "named.csv").write_text("\n".join([f"{heading},label", *named]) + "\n")
    for name in NAMES:
        heading, *rows = (tmp_path / f"{name}.csv").read_text().splitlines()
        cells = [
            row.split(",") if number % 10 else [f"none-{number}", "", ""]
            for number, row in enumerate(rows)
        ]
        told_of = [",".join([*row, "items-000", "north"]) for row in cells]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{heading},item,label", *told_of]) + "\n")
    gallery = ["--gallery", "items.npy", "--gallery-items", "named.csv"]
    asked, later = (["--queries", f"{name}.npy", "--items", f"{name}.csv"] for name in NAMES)
    for arguments in (
        ["index", "items.npy", "--items", "named.csv", "--encoder-name", "it", "--name", "half"],
        ["calibrate", "bundles/half", *asked, *gallery, "--within", "25", "--max-error", "0.2"],
        ["evaluate", "bundles/half", *later, "--out", "half.json"],
    ):
        done = vouch_build(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "left out: 30 of 300 queries, because they have no place" in told(done)
    stream = json.loads((tmp_path / "half.json").read_text())["stream"]
    assert (stream["n_present"], stream["n_absent"]) == (9 * N_QUERIES // 10, 9 * N_QUERIES // 20)
    assert stream["groups"]["n"] == stream["n_present"] + stream["n_absent"]
    calibration = open_bundle(tmp_path / "bundles/half", "cpu", threads=1).retriever.calibration
    evidence = not_none(calibration).evidence
    assert len(np.unique(evidence.clusters)) == len(evidence.clusters)
    assert (evidence.true_classes[~evidence.absent] == 0).all()


@pytest.mark.process
def test_items_without_a_place_and_places_at_zero_are_counted(street: Path, tmp_path: Path) -> None:
    shutil.copytree(street, tmp_path, dirs_exist_ok=True)
    places = {7: ",", 8: ",", 9: "0,0"}
    for name in ("items", "later"):
        heading, *rows = (tmp_path / f"{name}.csv").read_text().splitlines()
        for row, place in places.items():
            rows[row] = f"{name}-{row:03d},{place}"
        if name == "items":
            rows[11] = 'items-011,"47,37",8'
        (tmp_path / f"{name}.csv").write_text("\n".join([heading, *rows]) + "\n")
    gallery = ["--gallery", "items.npy", "--gallery-items", "items.csv"]
    asked, later = (["--queries", f"{name}.npy", "--items", f"{name}.csv"] for name in NAMES)
    for arguments in (
        ["index", "items.npy", "--items", "items.csv", "--encoder-name", "it", "--name", "gaps"],
        ["calibrate", "bundles/gaps", *asked, *gallery, "--within", "25", "--max-error", "0.2"],
        ["items", "delete", "bundles/gaps", "items-008", "items-010"],
        ["evaluate", "bundles/gaps", *later],
    ):
        done = vouch_build(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    sentences = told(done)
    assert f"2 of {N_ITEMS - 2} items have no place, so they are never a match" in sentences
    assert "Items with an invalid place: 1; for example the item 'items-011'" in sentences
    assert "1 of 300 queries are at latitude 0 and longitude 0" in sentences
    assert f"1 of {N_ITEMS - 2} items are at latitude 0 and longitude 0" in sentences


@pytest.mark.process
def test_queries_far_from_all_items_are_refused_in_words(street: Path) -> None:
    (street / "far.csv").write_text((street / "asked.csv").read_text().replace(",0,", ",60,"))
    queries = ["--queries", "asked.npy", "--items", "far.csv"]
    for command, expected in (
        ("calibrate", "Only 0 queries are within 25 metres of an item; at least 50 are needed"),
        ("evaluate", "compare latitude and longitude"),
    ):
        done = vouch_build(command, ROOT, *queries, cwd=street)
        assert done.returncode == 1
        assert expected in told(done)


@pytest.mark.process
def test_what_has_no_place_is_refused_in_words(street: Path) -> None:
    (street / "bare.csv").write_text("id\n" + "\n".join(map(str, range(3 * N_QUERIES // 2))) + "\n")
    done = vouch_build(
        "evaluate", ROOT, "--queries", "later.npy", "--items", "bare.csv", cwd=street
    )
    assert done.returncode == 1
    assert "no query has a place" in told(done)


@pytest.mark.process
def test_vectors_without_their_manifest_are_told_to_have_one(street: Path) -> None:
    queries = ["--queries", "asked.npy", "--items", "asked.csv"]
    done = vouch_build("calibrate", ROOT, *queries, "--gallery", "items.npy", cwd=street)
    assert done.returncode == 1
    assert "Name the manifest of the vectors with --gallery-items" in told(done)


@pytest.mark.process
def test_labels_of_places_have_no_effect(street: Path, tmp_path: Path) -> None:
    """The same street with a label for each 100 metres; one of the labels is deleted."""
    shutil.copytree(street, tmp_path, dirs_exist_ok=True)
    heading, *rows = (tmp_path / "items.csv").read_text().splitlines()
    labels = [f"block {int(float(row.split(',')[-1]) * DEGREE) // 100}" for row in rows]
    named = [f"{row},{label}" for row, label in zip(rows, labels, strict=True)]
    (tmp_path / "named.csv").write_text("\n".join([f"{heading},label", *named]) + "\n")
    of_gallery = ["--gallery", "items.npy", "--gallery-items", "named.csv"]
    asked = ["--queries", "asked.npy", "--items", "asked.csv", *of_gallery, "--max-error", "0.2"]
    gone = {
        row.split(",")[0] for row, label in zip(rows, labels, strict=True) if label == "block 7"
    }
    for arguments in (
        ["index", "items.npy", "--items", "named.csv", "--encoder-name", "it", "--name", "named"],
        ["calibrate", "bundles/named", *asked, "--within", "25"],
        ["items", "delete", "bundles/named", *sorted(gone)],
    ):
        done = vouch_build(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = vouch_build("calibrate", "bundles/named", *asked, "--levels", "quarter", cwd=tmp_path)
    assert done.returncode != 0
    assert "labels and their parents have no effect" in told(done)
    plain, other = (
        open_bundle(tmp_path / "bundles" / name, "cpu", threads=1).retriever
        for name in ("street", "named")
    )
    assert other.not_guaranteed is None
    n_compared = 0
    for vector in np.load(tmp_path / "later.npy")[::5]:
        expected, found = (
            each.find(predictive_of(each, VectorQuery(vector)), 5) for each in (plain, other)
        )
        names = [match.id for match in expected.matches]
        if gone.isdisjoint(names):
            assert [match.id for match in found.matches] == names
            first, again = (one.matches[0].match_probability for one in (expected, found))
            assert again == pytest.approx(first, abs=0.1)  # the outlier test uses labels
            n_compared += 1
    assert n_compared > 40

"""Queries of one's own calibrate a bundle, wherever it was made, and measure it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from index_builder.datasets.images import from_files
from index_builder.indexing.engines import open_encoder
from index_builder.vectors.encoder import embed_with_features
from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import current_id
from model_store.bundles.kept_queries import CalibrationInputs
from model_store.bundles.manifest import ENCODER_FILE, EVALUATION_FILE
from model_store.queries import VectorQuery, predictive_of
from tests.support.build_command import Done, vouch_build
from tests.support.collection_files import write_drawings
from tests.support.narrowing import not_none

pytestmark = pytest.mark.process

ABSENT = {"8", "9"}
N_DRAWINGS = 1_000


def build(where: Path, *arguments: object) -> Done:
    return vouch_build(*map(str, arguments), cwd=where)


def succeeded(where: Path, *arguments: object) -> str:
    done = build(where, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(where: Path, *arguments: object) -> str:
    done = build(where, *arguments)
    assert done.returncode == 1, done.stdout
    return " ".join(done.stderr.replace("│", " ").split())


def write_manifest(path: Path, names: Sequence[str], column: str = "label") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "path", column])
        writer.writerows([name, name, name.split("/")[0]] for name in names)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, digits_bundle: Path) -> Path:
    """Drawings, divided: a gallery without two of the labels, and two sets of queries."""
    where = tmp_path_factory.mktemp("own")
    write_drawings(where, N_DRAWINGS)
    shutil.copy(digits_bundle / ENCODER_FILE, where / ENCODER_FILE)
    names = sorted(f"{path.parent.name}/{path.name}" for path in where.glob("?/*.png"))
    gallery = [name for name in names[::2] if name[0] not in ABSENT]
    queries = [name for name in names if name not in set(gallery)]
    write_manifest(where / "gallery.csv", gallery)
    write_manifest(where / "queries.csv", queries[::2])
    write_manifest(where / "others.csv", queries[1::2])
    write_manifest(where / "some.csv", queries[1::8])
    encoder = open_encoder(where / ENCODER_FILE, "cpu")
    for part in ("gallery", "queries", "others"):
        rows = rows_of(where / f"{part}.csv")
        images = from_files(where, [row["path"] for row in rows], [row["label"] for row in rows])
        found = embed_with_features(encoder, images, part)
        np.savez(
            where / f"{part}.npz",
            allow_pickle=False,
            mean=found.mean,
            variance=found.variance,
            features=found.features,
        )
    for options in (
        ("gallery.csv", "--encoder", ENCODER_FILE, "--name", "images"),
        ("gallery.npz", "--items", "gallery.csv", "--encoder-name", "it", "--name", "vectors"),
    ):
        succeeded(where, "index", *options)
    return where


@pytest.fixture
def root(where: Path, tmp_path: Path) -> Path:
    """The uncalibrated gallery of images, for one test."""
    return Path(shutil.copytree(where / "bundles" / "images", tmp_path / "bundles"))


@pytest.fixture(scope="module")
def calibrated(where: Path) -> Path:
    """The gallery of images with a calibration that promises an error of its own."""
    root = Path(shutil.copytree(where / "bundles" / "images", where / "calibrated"))
    said = succeeded(
        where,
        *("calibrate", root, "--queries", "queries.csv", "--gallery", "gallery.csv"),
        *("--max-error", "0.1"),
    )
    assert "queries with a match" in said
    return root


def test_an_evaluation_of_absent_queries_alone_is_refused_in_words(
    where: Path, calibrated: Path
) -> None:
    names = [row["path"] for row in rows_of(where / "others.csv") if row["label"] in ABSENT]
    write_manifest(where / "absent.csv", names)
    said = refused(where, "evaluate", calibrated, "--queries", "absent.csv")
    assert "An evaluation needs one or more queries with a match" in said


def test_a_bundle_from_elsewhere_is_calibrated_and_measured(where: Path, calibrated: Path) -> None:
    told = succeeded(
        where,
        *("evaluate", calibrated, "--queries", "others.csv"),
        *("--out", "report.json", "--page", "report.html"),
    )
    report = json.loads((where / "report.json").read_text())
    stream = report["stream"]
    assert "The first result is right for " in told
    assert "All numbers: report.md" in told
    assert "| stream: fpir: interval | " in (where / "report.md").read_text(encoding="utf-8")
    low, high = stream["fpir"]["interval"]
    assert low <= stream["fpir"]["share"] <= high
    assert stream["fpir"]["share"] == report["verdicts"]["near"].get("match", 0)
    assert stream["fnir"]["share"] >= 1 - report["verdicts"]["matched"]["match"]
    n = stream["fnir"]["n"] + stream["fpir"]["n"]
    assert n == stream["n_present"] + stream["n_absent"] == len(rows_of(where / "others.csv"))
    assert stream["risk_coverage"][-1][0] == pytest.approx(1)
    page = (where / "report.html").read_text()
    n_wrong = stream["n_absent"] + round((1 - report["recall_at_1"]) * stream["n_present"])
    assert page.count("<li><img") == min(24, n_wrong)
    assert f"of {n_wrong} queries with a wrong first item" in page
    assert report["recall_at_1"] > 0.9
    assert report["top1_ece"] < 0.1
    assert report["verdicts"]["matched"]["match"] > 0.5
    bundle = open_bundle(calibrated, "cpu", threads=1)
    lone_share = not_none(bundle.retriever.calibration).evidence.lone_share
    assert lone_share is None, "the user has chosen the queries, and not at random among images"
    # The promised error is one of the stream that the calibration assumes, absent queries among it.
    share = not_none(bundle.retriever.calibration).default_share
    absent = share * report["verdicts"]["near"].get("match", 0)
    present = (1 - share) * report["orders"]["similarity"]["match_share"]
    wrong = absent + present * report["orders"]["similarity"]["match_error"]
    assert wrong / (absent + present) < 0.1
    manifest = bundle.manifest
    assert not_none(manifest.calibration)["max_error"] == 0.1
    assert manifest.metrics is None
    assert EVALUATION_FILE not in manifest.files


def test_a_second_calibration_needs_no_gallery_and_keeps_its_promises(
    where: Path, calibrated: Path
) -> None:
    before = open_bundle(calibrated, "cpu", threads=1)
    root = Path(shutil.copytree(calibrated, where / "again"))
    succeeded(where, "calibrate", root, "--queries", "others.csv", "--alpha", "0.02")
    after = open_bundle(root, "cpu", threads=1)
    summary = not_none(after.manifest.calibration)
    assert (summary["max_error"], summary["alpha"]) == (0.1, 0.02)
    assert after.manifest.id != before.manifest.id
    assert after.retriever.stale is None
    scores = [not_none(one.retriever.calibration).outlier_scores[-1] for one in (before, after)]
    assert scores[0] != scores[1]
    kept = not_none(
        CalibrationInputs.load(root / not_none(current_id(root)))
    )  # to be fitted to again
    assert {*kept.matched.ids, *kept.withheld.ids} == {
        row["id"] for row in rows_of(where / "others.csv")
    }


def test_live_changes_are_taken_in(where: Path, root: Path) -> None:
    new = next((where / "1").iterdir())
    succeeded(where, "items", "put", root, new, "--label", "new one")
    n_items = open_bundle(root, "cpu", threads=1).retriever.gallery.n_items
    succeeded(where, "calibrate", root, "--queries", "queries.csv", "--gallery", "gallery.csv")
    bundle = open_bundle(root, "cpu", threads=1)
    assert bundle.retriever.gallery.n_items == n_items
    assert bundle.n_pending == 0
    assert "new one" in bundle.retriever.gallery.labels
    assert bundle.retriever.stale is None


def test_images_and_their_vectors_give_the_same_probabilities(where: Path, tmp_path: Path) -> None:
    """Both galleries, calibrated with the same vectors and asked with images and with vectors."""
    retrievers = {}
    for name in ("images", "vectors"):
        root = Path(shutil.copytree(where / "bundles" / name, tmp_path / name))
        succeeded(
            where,
            *("calibrate", root, "--vectors", "queries.npz", "--items", "queries.csv"),
            *("--gallery", "gallery.npz", "--gallery-items", "gallery.csv"),
        )
        retrievers[name] = open_bundle(root, "cpu", threads=1).retriever
    arrays = np.load(where / "others.npz")
    names = [row["path"] for row in rows_of(where / "others.csv")]
    for row in range(0, len(names), 5):
        query = VectorQuery(*(arrays[part][row] for part in ("mean", "variance", "features")))
        by_image = retrievers["images"].search((where / names[row]).read_bytes(), 5)
        for retriever in retrievers.values():
            by_vector = retriever.find(predictive_of(retriever, query), 5)
            assert by_vector.decision.verdict == by_image.decision.verdict
            for one, other in zip(by_vector.matches, by_image.matches, strict=True):
                assert one.id == other.id
                assert one.match_probability == pytest.approx(other.match_probability, abs=1e-6)


def test_a_query_may_name_the_item_that_it_shows(where: Path, root: Path, calibrated: Path) -> None:
    """Queries about one item, and absent queries of one group, are not independent."""
    gallery = {row["label"]: row["id"] for row in rows_of(where / "gallery.csv")}
    rows = rows_of(where / "queries.csv")
    with (where / "by_item.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "path", "item", "group"])
        for place, row in enumerate(rows):
            item = gallery.get(row["label"], "")
            writer.writerow([row["id"], row["path"], item, "" if item else f"animal {place % 12}"])
    succeeded(where, "calibrate", root, "--queries", "by_item.csv", "--gallery", "gallery.csv")
    one, other = (
        not_none(open_bundle(path, "cpu", threads=1).retriever.calibration).outlier_scores
        for path in (root, calibrated)
    )
    np.testing.assert_array_equal(one, other)
    kept = not_none(CalibrationInputs.load(root / not_none(current_id(root))))
    of_items = {f"group item {item}" for label, item in gallery.items() if label not in ABSENT}
    assert set(kept.matched.groups) == of_items
    assert len(set(kept.withheld.labels)) == 12 < len(kept.withheld.labels)
    evidence = not_none(open_bundle(root, "cpu", threads=1).retriever.calibration).evidence
    clusters = (
        len(np.unique(evidence.clusters[kind])) for kind in (~evidence.absent, evidence.absent)
    )
    assert tuple(clusters) == (len(of_items), 12)


def test_the_gallery_stands_in_for_few_queries_without_a_match(where: Path, root: Path) -> None:
    heading, *rows = (where / "queries.csv").read_text().splitlines()
    absent = [row for row in rows if row.split(",")[-1] in ABSENT]
    few = [row for row in rows if row not in absent] + absent[:5]
    (where / "few.csv").write_text("\n".join([heading, *few]) + "\n")
    said = succeeded(where, "calibrate", root, "--queries", "few.csv", "--gallery", "gallery.csv")
    assert "5 without" in said
    assert "the calibration hides the true matches of some queries" in " ".join(said.split())
    fitted = not_none(open_bundle(root, "cpu", threads=1).retriever.calibration)
    assert fitted.report["absence"].startswith("hidden")


def test_two_bundles_are_compared_on_the_same_queries(where: Path, calibrated: Path) -> None:
    """The other one promises so small an error that it calls nothing a match."""
    root = Path(shutil.copytree(calibrated, where / "strict"))
    succeeded(where, "calibrate", root, "--queries", "queries.csv", "--max-error", "0.0001")
    options = ("--queries", "others.csv", "--out", "compared.json", "--page", "compared.html")
    told = succeeded(where, "compare", calibrated, root, *options)
    report = json.loads((where / "compared.json").read_text())
    assert report["promised"]["max_error"] == [0.1, 0.0001]
    assert report["thresholds"]["many"][1] is None
    assert report["measured"]["coverage"][0] > report["measured"]["coverage"][1] == 0
    # What was rightly called a match is not any more; wrong matches of absent queries are gone.
    assert report["changes"]["broken"] == report["verdicts"]["match → ambiguous"] - sum(
        report["changes"][kind] for kind in ("fixed", "changed")
    )
    assert f"broken: {report['changes']['broken']} of {report['n_queries']} answers" in told
    page = (where / "compared.html").read_text()
    assert f"Now wrong: {report['changes']['broken']}" in page
    same = succeeded(where, "compare", calibrated, calibrated, "--queries", "some.csv")
    assert "broken: 0 of" in same


def test_query_labels_in_another_spelling_are_named(where: Path, calibrated: Path) -> None:
    rows = rows_of(where / "others.csv")
    lines = [f"{row['id']},{row['path']},{row['label']}" for row in rows]
    lines = [f"{line} " if line.endswith(",1") else line for line in lines]
    (where / "spaces.csv").write_text("\n".join(["id,path,label", *lines]) + "\n")
    told = succeeded(where, "evaluate", calibrated, "--queries", "spaces.csv")
    assert "1 labels of queries differ from a label of the gallery" in told
    assert "'1 ' ('1')" in told
    assert "differ from a label" not in succeeded(
        where, "evaluate", calibrated, "--queries", "some.csv"
    )


def test_items_that_are_not_in_the_source_of_the_gallery_are_counted(
    where: Path, root: Path
) -> None:
    heading, *rows = (where / "gallery.csv").read_text().splitlines()
    (where / "half.csv").write_text("\n".join([heading, *rows[::2]]) + "\n")
    told = succeeded(where, "calibrate", root, "--queries", "queries.csv", "--gallery", "half.csv")
    assert f"{len(rows) // 2} of {len(rows)} items are not in --gallery." in told


def test_unreadable_images_of_the_gallery_are_named(where: Path, root: Path) -> None:
    heading, first, *rows = (where / "gallery.csv").read_text().splitlines()
    name, _, label = first.split(",")
    (where / "broken.png").write_bytes(b"no image")
    lines = [heading, f"{name},broken.png,{label}", *rows]
    (where / "broken.csv").write_text("\n".join(lines) + "\n")
    told = succeeded(
        where, "calibrate", root, "--queries", "queries.csv", "--gallery", "broken.csv"
    )
    assert f"left out: {name}: " in told


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("evaluate", "--items", "none.csv"), "none.csv cannot be used: --items"),
            (("calibrate", "--items", "none.csv"), "none.csv cannot be used: --items"),
            (
                ("calibrate", "--gallery", "gallery.csv", "--gallery-items", "none.csv"),
                "none.csv cannot be used: --items and --gallery-items",
            ),
            (("calibrate", "--gallery-items", "none.csv"), "--gallery-items needs --gallery"),
            (("evaluate", "--run", "x"), "--run is the run directory of a build"),
            (("calibrate", "--run", "x"), "--run is the run directory of a build"),
        ],
    )
    def test_options_that_would_be_ignored(
        self, where: Path, calibrated: Path, options: Sequence[str], said: str
    ) -> None:
        command, *others = options
        done = build(where, command, calibrated, "--queries", "queries.csv", *others)
        assert done.returncode == 2
        assert said in " ".join(done.stderr.replace("│", " ").split())

    def test_a_query_of_an_item_that_is_not_there(self, where: Path, root: Path) -> None:
        (where / "bad.csv").write_text("path,item\n0/0000.png,nobody\n")
        said = refused(where, "calibrate", root, "--queries", "bad.csv")
        assert "bad.csv, line 2: the query shows the item 'nobody'" in said

    def test_an_item_whose_name_looks_like_a_number(self, where: Path, root: Path) -> None:
        n = len(rows_of(where / "gallery.csv"))
        (where / "bad.csv").write_text("path,item\n" + "0/0000.png,2019.10\n" * n)
        for bundles, queries in (
            (root, ("bad.csv",)),
            (where / "bundles" / "vectors", ("gallery.npz", "--items", "bad.csv")),
        ):
            said = refused(where, "calibrate", bundles, "--queries", *queries)
            assert "bad.csv, line 2: the query shows the item '2019.10'" in said

    def test_a_first_calibration_without_the_gallery(self, where: Path, root: Path) -> None:
        said = refused(where, "calibrate", root, "--queries", "queries.csv")
        assert "never calibrated" in said
        assert "--gallery" in said

    def test_queries_that_all_match(self, where: Path, calibrated: Path) -> None:
        rows = (where / "queries.csv").read_text().splitlines()
        matched = [row for row in rows if row.split(",")[-1] not in ABSENT]
        (where / "matched.csv").write_text("\n".join(matched) + "\n")
        said = refused(where, "calibrate", calibrated, "--queries", "matched.csv")
        assert "Add realistic queries without a match" in said

    def test_an_evaluation_of_what_is_not_calibrated(self, where: Path, root: Path) -> None:
        assert "not calibrated" in refused(where, "evaluate", root, "--queries", "others.csv")

    def test_vectors_of_another_encoder(self, where: Path, calibrated: Path) -> None:
        np.save(where / "short.npy", np.ones((30, 3)))
        said = refused(where, "calibrate", calibrated, "--vectors", "short.npy")
        assert "means of 3 numbers" in said

    def test_vectors_that_lack_the_variance(self, where: Path, calibrated: Path) -> None:
        arrays = np.load(where / "queries.npz")
        np.savez(
            where / "bare.npz",
            allow_pickle=False,
            mean=arrays["mean"],
            features=arrays["features"],
        )
        said = refused(where, "calibrate", calibrated, "--vectors", "bare.npz")
        assert "has no variance" in said


def test_a_query_that_cannot_be_read_is_left_out_and_named(where: Path, calibrated: Path) -> None:
    rows = (where / "some.csv").read_text().splitlines()
    (where / "0" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    (where / "broken.csv").write_text("\n".join([*rows, "broken,0/broken.png,0"]) + "\n")
    said = succeeded(where, "evaluate", calibrated, "--queries", "broken.csv")
    assert "left out: broken: " in said


def test_queries_that_are_items_are_left_out(where: Path, calibrated: Path) -> None:
    """Files of the gallery, under other ids, find themselves."""
    items = [row["path"] for row in rows_of(where / "gallery.csv")[:60]]
    copies = [f"copy of {path},{path},{path[0]}" for path in items]
    (where / "copies.csv").write_text("\n".join(["id,path,label", *copies]) + "\n")
    others = (where / "others.csv").read_text()
    (where / "both.csv").write_text(others + "\n".join(copies) + "\n")
    reports = []
    for name in ("others.csv", "both.csv"):
        said = succeeded(where, "evaluate", calibrated, "--queries", name, "--out", "found.json")
        assert ("left out: 60 queries" in said) == (name == "both.csv")
        reports.append(json.loads((where / "found.json").read_text()))
    assert reports[0] == reports[1]
    for command in ("evaluate", "calibrate"):
        said = refused(where, command, calibrated, "--queries", "copies.csv")
        assert "All 60 queries with a match are equal to an item of the gallery" in said


def test_queries_that_match_nothing_are_grouped(where: Path, calibrated: Path) -> None:
    told = succeeded(
        where,
        *("unknown", calibrated, "--queries", "others.csv", "--expected-absent", "0.3"),
        *("--precision", "0.8"),
        *("--out", "unknown.json", "--table", "unknown.csv", "--page", "unknown.html"),
    )
    report = json.loads((where / "unknown.json").read_text())
    groups = [[one["id"] for one in group["members"]] for group in report["groups"]]
    assert f"{report['n_unknown']} match nothing" in told
    assert report["n_queries"] == len(rows_of(where / "others.csv"))
    assert sum(map(len, groups)) + len(report["ungrouped"]) == report["n_unknown"]
    pairs = [(a[0], b[0]) for group in groups for a, b in combinations(group, 2)]
    right = sum(first == second for first, second in pairs) / len(pairs)
    assert right >= 0.4, "an eighth by chance; the encoder has learned six of the gallery's labels"
    assert rows_of(where / "unknown.csv")[0]["group"] == report["groups"][0]["id"]
    page = (where / "unknown.html").read_text()
    assert page.count("<section>") == len(groups)
    assert page.count("<li><img") == sum(map(len, groups))
    assert "not calibrated" in refused(
        where, "unknown", where / "bundles" / "images", "--queries", "others.csv"
    )

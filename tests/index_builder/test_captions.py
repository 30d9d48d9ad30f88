"""Captions: read from a table, and what queries in words are calibrated to by them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from index_builder.calibration.calibrate import Captions, calibrate_texts
from index_builder.commands.app import app
from index_builder.configuration.build import CalibrationConfig
from index_builder.indexing.bundle_evidence import calibrate_bundle_texts, read_captions
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.directory import bundle_ids, locate
from model_store.bundles.manifest import read_manifest
from model_store.decision import Calibration
from model_store.decision.calibration import ARRAYS_FILE
from model_store.errors import (
    CalibrationError,
    DatasetError,
    TextUnavailable,
    UsageError,
    WriteRefused,
)
from model_store.gallery import Delete
from model_store.queries import search_text
from tests.support.word_towers import captions_of_digits, with_word_tower, write_captions


@pytest.fixture(scope="module")
def plain(digits_bundle: Path) -> Bundle:
    return open_bundle(digits_bundle, "cpu", threads=1)


@pytest.fixture(scope="module")
def worded(plain: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one bundle of digits, with a tower that knows their names."""
    place = tmp_path_factory.mktemp("worded") / "bundles"
    with_word_tower(plain, place)
    return place


@pytest.fixture(scope="module")
def opened(worded: Path) -> Bundle:
    return open_bundle(worded, "cpu", threads=1)


def read(bundle: Bundle, path: Path) -> Captions:
    return read_captions(path, bundle.retriever.gallery)


class TestTheTable:
    def test_what_each_line_is_about(self, opened: Bundle, tmp_path: Path) -> None:
        item = next(one for one in opened.retriever.gallery.items(np.arange(9)) if one.label == "4")
        found = read(
            opened,
            write_captions(
                tmp_path / "c.jsonl",
                [
                    {"text": "a four", "label": "4"},
                    {"text": "this four", "id": item.id, "source": "shop"},
                    {"text": "the same", "id": item.id},
                    {"text": "A FOUR", "label": "4", "group": "g"},
                    {"text": "a horse"},
                    {"text": "A four", "label": "4"},
                ],
            ),
        )
        assert found.labels == ("4", "4", "4", "4", None, "4")
        assert found.sources == ("", "shop", "", "", "", "")
        clusters = found.clusters
        assert clusters[1] == clusters[2]
        assert clusters[0] == clusters[5]
        assert len(set(clusters)) == 4

    def test_csv_whose_texts_look_like_numbers(self, opened: Bundle, tmp_path: Path) -> None:
        (tmp_path / "c.csv").write_text("text,label\n007,7\nsieben,7\n3.50,\n", encoding="utf-8")
        found = read(opened, tmp_path / "c.csv")
        assert found.texts == ("007", "sieben", "3.50")
        assert found.labels == ("7", "7", None)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ({"label": "4"}, "line 1: there is no text"),
            ({"text": "  ", "label": "4"}, "line 1: there is no text"),
            ({"text": ["four"]}, "text is \\['four'\\]; wanted text"),
            ({"text": "a", "label": "ten"}, "the gallery has no label 'ten'. Leave label empty"),
            ({"text": "a", "id": "nobody"}, "no item with the id 'nobody'"),
        ],
    )
    def test_a_line_that_is_wrong_is_named(
        self, opened: Bundle, tmp_path: Path, line: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(DatasetError, match=reason):
            read(opened, write_captions(tmp_path / "c.jsonl", [line]))

    def test_an_item_and_another_label(self, opened: Bundle, tmp_path: Path) -> None:
        item = next(one for one in opened.retriever.gallery.items(np.arange(9)) if one.label != "4")
        line = {"text": "a four", "id": item.id, "label": "4"}
        with pytest.raises(DatasetError, match=f"has the label '{item.label}', not '4'"):
            read(opened, write_captions(tmp_path / "c.jsonl", [line]))

    def test_no_table(self, opened: Bundle, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="does not exist"):
            read(opened, tmp_path / "c.jsonl")
        with pytest.raises(DatasetError, match="cannot be read: Is a directory"):
            read(opened, tmp_path)


def captions(bundle: Bundle, n: int, seed: int = 0, n_absent: int = 0) -> Captions:
    lines = captions_of_digits(bundle, n, seed)
    generator = np.random.default_rng(seed)
    words = ["horse", "house", "a", "the", "nice"]
    texts = [" ".join(generator.choice(words, 4)) + f" {row}" for row in range(n_absent)]
    labels: list[str | None] = [line["label"] for line in lines]
    whole = [line["text"] for line in lines] + texts
    return Captions(tuple(whole), (*labels, *[None] * n_absent), tuple(whole))


class TestTheFit:
    def test_probabilities_say_how_often_the_first_item_is_right(self, opened: Bundle) -> None:
        """In one of four texts two digits are named, and nobody can tell which is meant."""
        retriever, text = opened.retriever, opened.retriever.text
        assert text is not None
        fitted = calibrate_texts(
            text, retriever.gallery, captions(opened, 400), CalibrationConfig(max_error=0.1), 0
        )
        assert fitted.encoder_fingerprint == text.fingerprint
        assert fitted.report["queries"] == "captions"
        assert fitted.evidence.absence == "hidden_labels"
        judged = type(retriever)(
            retriever.encoder, retriever.gallery, retriever.calibration, text, fitted
        )
        plain: list[tuple[Any, ...]] = []
        double: list[tuple[Any, ...]] = []
        for line in captions_of_digits(opened, 300, seed=1):
            first = search_text(judged, line["text"], 1)
            named = sum(word in line["text"].split() for word in NAMES)
            right = first.matches[0].label == line["label"]
            outcome = first.matches[0].match_probability, right, first.decision.verdict
            (plain if named == 1 else double).append(outcome)
        for outcomes, tolerance in ((plain, 0.03), (double, 0.15)):
            probability, share = np.mean([outcome[:2] for outcome in outcomes], axis=0)
            assert probability == pytest.approx(share, abs=tolerance)
        assert np.mean([right for _, right, _ in double]) < 0.7
        assert np.mean([verdict == "match" for *_, verdict in plain]) > 0.9
        assert np.mean([verdict == "match" for *_, verdict in double]) < 0.2
        matches = [right for _, right, verdict in plain + double if verdict == "match"]
        assert np.mean(matches) > 0.8  # promised
        assert search_text(judged, "zzz yyy xxx").decision.verdict == "out_of_distribution"

    def test_captions_about_nothing_are_absent_queries(self, opened: Bundle) -> None:
        retriever, text = opened.retriever, opened.retriever.text
        assert text is not None
        known = captions(opened, 80, n_absent=60)
        fitted = calibrate_texts(text, retriever.gallery, known, CalibrationConfig(), 0)
        assert fitted.evidence.absence == "absent_labels"
        assert fitted.report["n_absent"] == 60
        assert fitted.report["cross_fitted"]["absent_auroc"] > 0.9

    def test_the_same_captions_give_the_same_calibration(
        self, opened: Bundle, tmp_path: Path
    ) -> None:
        retriever, text = opened.retriever, opened.retriever.text
        assert text is not None
        found = []
        for number in range(2):
            place = tmp_path / str(number)
            place.mkdir()
            known, config = captions(opened, 60), CalibrationConfig()
            calibrate_texts(text, retriever.gallery, known, config, 3).save(place, "text")
            found.append([path.read_bytes() for path in sorted(place.glob("*.json"))])
        assert found[0] == found[1]

    @pytest.mark.parametrize(
        ("n", "n_absent", "reason"),
        [
            (0, 0, "0 captions have a match in the gallery and 0 have none"),
            (49, 0, "49 captions have a match in the gallery and 0 have none"),
            (60, 7, "60 captions have a match in the gallery and 7 have none"),
        ],
    )
    def test_too_few(self, opened: Bundle, n: int, n_absent: int, reason: str) -> None:
        text = opened.retriever.text
        assert text is not None
        known = captions(opened, n, n_absent=n_absent)
        with pytest.raises(CalibrationError, match=reason):
            calibrate_texts(text, opened.retriever.gallery, known, CalibrationConfig(), 0)

    def test_one_caption_for_each_label(self, opened: Bundle) -> None:
        """The outlier detector then sees no spread within a label."""
        text = opened.retriever.text
        assert text is not None
        labels = tuple(opened.retriever.gallery.labels) * 12
        texts = tuple(f"a photo of the {NAMES[int(label)]}" for label in labels)
        fitted = calibrate_texts(
            text, opened.retriever.gallery, Captions(texts, labels, texts), CalibrationConfig(), 0
        )
        assert fitted.n_queries == len(texts)
        assert fitted.report["queries"] == "captions"

    def test_all_of_one_group(self, opened: Bundle) -> None:
        text = opened.retriever.text
        assert text is not None
        known = replace(captions(opened, 80), clusters=("g",) * 80)
        with pytest.raises(CalibrationError, match="All except 0 of 80 calibration queries"):
            calibrate_texts(text, opened.retriever.gallery, known, CalibrationConfig(), 0)

    def test_all_of_one_thing(self, opened: Bundle) -> None:
        text = opened.retriever.text
        assert text is not None
        known = captions(opened, 80)
        with pytest.raises(CalibrationError, match="All captions are about '7'"):
            calibrate_texts(
                text,
                opened.retriever.gallery,
                replace(known, labels=("7",) * 80),
                CalibrationConfig(),
                0,
            )


NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class TestTheCommand:
    def run(self, *arguments: str | Path) -> Any:
        return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])

    def test_a_bundle_with_calibrated_texts_is_published(
        self, worded: Path, opened: Bundle, tmp_path: Path
    ) -> None:
        root = Path(shutil.copytree(worded, tmp_path / "bundles"))
        before = locate(root)
        table = write_captions(tmp_path / "c.jsonl", captions_of_digits(opened, 120, 0))
        result = self.run(root, "--captions", table, "--alpha", "0.1")
        assert result.exit_code == 0, (result.output, result.exception)
        assert "of 120 captions." in result.output
        after = locate(root)
        assert bundle_ids(root) == [before.name, after.name]
        assert str(after) in result.output
        one, other = (np.load(place / ARRAYS_FILE) for place in (before, after))
        for name in one.files:
            np.testing.assert_allclose(one[name], other[name], atol=1e-6, err_msg=name)
        manifest = read_manifest(after)
        summary = manifest.encoder["text"]["calibration"]
        assert (summary["alpha"], summary["n_queries"]) == (0.1, 120)
        # The rest is promised as it is to images.
        assert manifest.calibration is not None
        assert summary["max_error"] == manifest.calibration["max_error"]
        retriever = open_bundle(root, "cpu", threads=1).retriever
        assert search_text(retriever, "a nice seven").decision.verdict != "not_calibrated"
        assert not [path for path in root.iterdir() if path.name.endswith(".partial")]
        # Other captions take the place of these.
        other = write_captions(tmp_path / "d.jsonl", captions_of_digits(opened, 90, 1))
        published = calibrate_bundle_texts(root, other, {})
        fitted = Calibration.load(published, "text")
        assert fitted is not None
        assert fitted.n_queries == 90
        assert locate(root) == published != after

    def test_changes_since_are_taken_in(self, worded: Path, tmp_path: Path) -> None:
        root = Path(shutil.copytree(worded, tmp_path / "bundles"))
        bundle = open_bundle(root, "cpu", threads=1)
        n_items = bundle.retriever.gallery.n_items
        gone = bundle.retriever.gallery.items(np.arange(1))[0].id
        bundle.require_live().commit([Delete(gone)])
        table = write_captions(tmp_path / "c.jsonl", captions_of_digits(bundle, 60, 0))
        calibrate_bundle_texts(root, table, {})
        retriever = open_bundle(root, "cpu", threads=1).retriever
        assert retriever.gallery.n_items == n_items - 1
        assert retriever.for_kind("text").stale is None
        assert search_text(retriever, "a nice seven").matches[0].match_probability is not None

    def test_what_makes_it_stale_says_that_captions_are_needed(
        self, worded: Path, tmp_path: Path
    ) -> None:
        root = Path(shutil.copytree(worded, tmp_path / "bundles"))
        bundle = open_bundle(root, "cpu", threads=1)
        table = write_captions(tmp_path / "c.jsonl", captions_of_digits(bundle, 60, 0))
        calibrate_bundle_texts(root, table, {})
        bundle = open_bundle(root, "cpu", threads=1)
        gallery = bundle.retriever.gallery
        items = gallery.items(np.arange(gallery.n_items))
        gone = [Delete(item.id) for item in items if item.label == items[0].label]
        bundle.require_live().commit(gone)
        retriever = bundle.retriever.with_gallery(bundle.require_live().snapshot())
        of_texts = retriever.for_kind("text")
        for reason in (of_texts.stale, of_texts.not_guaranteed):
            assert "calibrate BUNDLES --captions FILE" in str(reason)
        assert "--captions" not in str(retriever.not_guaranteed)

    def test_a_compaction_keeps_it(self, worded: Path, tmp_path: Path) -> None:
        root = Path(shutil.copytree(worded, tmp_path / "bundles"))
        bundle = open_bundle(root, "cpu", threads=1)
        table = write_captions(tmp_path / "c.jsonl", captions_of_digits(bundle, 60, 0))
        calibrate_bundle_texts(root, table, {})
        bundle = open_bundle(root, "cpu", threads=1)
        gone = bundle.retriever.gallery.items(np.arange(1))[0].id
        bundle.require_live().commit([Delete(gone)])
        assert CliRunner().invoke(app, ["compact", str(root)]).exit_code == 0
        retriever = open_bundle(root, "cpu", threads=1).retriever
        assert retriever.for_kind("text").stale is None
        assert search_text(retriever, "a nice seven").matches[0].match_probability is not None

    def test_what_cannot_be_calibrated(
        self, worded: Path, opened: Bundle, digits_bundle: Path, tmp_path: Path
    ) -> None:
        table = write_captions(tmp_path / "c.jsonl", captions_of_digits(opened, 90, 0))
        with pytest.raises(TextUnavailable, match="no text encoder"):
            calibrate_bundle_texts(digits_bundle.parent, table, {})
        with pytest.raises(WriteRefused, match="name the directory that holds its bundles"):
            calibrate_bundle_texts(locate(worded), table, {})

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--captions", "c"], "--captions needs BUNDLES"),
            (["b", "--captions", "c", "--queries", "q"], "only text queries. Remove --queries."),
            (["b", "--captions", "c", "--decisions", "d"], "queries. Remove --decisions."),
            (["-c", "digits", "--captions", "c"], "--captions needs BUNDLES"),
        ],
    )
    def test_options_that_contradict(self, arguments: list[str], reason: str) -> None:
        result = self.run(*arguments)
        assert isinstance(result.exception, UsageError)
        assert reason in str(result.exception)


def test_the_table_of_a_gallery_without_labels_names_items(opened: Bundle, tmp_path: Path) -> None:
    gallery = _WithoutLabels(opened.retriever.gallery)
    item = gallery.items(np.arange(1))[0].id
    line = json.dumps({"text": "that one", "id": item})
    (tmp_path / "c.jsonl").write_text(line, encoding="utf-8")
    assert read_captions(tmp_path / "c.jsonl", gallery).labels == (item,)
    (tmp_path / "c.jsonl").write_text('{"text": "a", "label": "7"}', encoding="utf-8")
    with pytest.raises(DatasetError, match="the gallery has no labels: name items by their id"):
        read_captions(tmp_path / "c.jsonl", gallery)


class _WithoutLabels:
    """A gallery, of whose labels nothing is known."""

    def __init__(self, gallery: Any) -> None:
        self._gallery = gallery
        self.labels: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gallery, name)

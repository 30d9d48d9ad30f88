"""A collection calibrates itself: some of its images, or views of them, are the queries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collection_files import lines, write_drawings

from index_builder.datasets.images import from_files
from index_builder.datasets.views import view
from index_builder.indexing.collection import Indexing, Outcome, index_collection
from index_builder.indexing.dry_run import rehearse
from index_builder.indexing.sources import open_source
from index_builder.indexing.tolerance import NONE
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import CalibrationError, ConfigError
from model_store.gallery import IndexSettings

N_IMAGES = 320

At = Callable[[Path], Indexing]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough drawings that a fifth of each label's calibrates, one of them twice."""
    root = tmp_path_factory.mktemp("many")
    write_drawings(root, N_IMAGES)
    first = min((root / "0").iterdir())
    (root / "0" / "copy.png").write_bytes(first.read_bytes())
    return root


@pytest.fixture(scope="module")
def asked(digits_bundle: Path, many: Path, tmp_path_factory: pytest.TempPathFactory) -> Indexing:
    """What `calibrated` came of."""
    directory = tmp_path_factory.mktemp("calibrated")
    return Indexing(
        source=open_source(many),
        encoder=digits_bundle / ENCODER_FILE,
        name="many",
        description="",
        directory=directory / "run",
        bundles=directory / "bundles",
        tolerance=NONE,
        resume=True,
        n_workers=2,
        provider="cpu",
        calibrate=True,
    )


@pytest.fixture(scope="module")
def calibrated(asked: Indexing) -> Outcome:
    return index_collection(asked)


@pytest.fixture(scope="module")
def held_out(asked: Indexing, calibrated: Outcome) -> list[str]:
    return [line["id"] for line in lines(asked.directory / "held_out.jsonl")]


def opened(outcome: Outcome) -> Bundle:
    return open_bundle(outcome.bundle.parent, "cpu", threads=1)


def n_right(bundle: Bundle, images: list[bytes], names: list[str]) -> Counter[str]:
    """Verdicts, and among ``match`` how many first results are what was asked for."""
    counted: Counter[str] = Counter()
    for image, name in zip(images, names, strict=True):
        answer = bundle.retriever.search(image)
        counted[answer.decision.verdict] += 1
        if answer.decision.verdict == "match":
            first = answer.matches[0].item
            counted["right"] += name in {first.id, first.label}
    return counted


def test_a_fifth_of_each_label_is_asked_and_not_indexed(
    calibrated: Outcome, held_out: list[str], many: Path
) -> None:
    n_of = Counter(path.parent.name for path in many.glob("*/*"))
    n_held_out = Counter(name.split("/")[0] for name in held_out)
    for label, n in n_of.items():
        n_unique = n - 2 * (label == "0")  # a copy is never held out, nor what it is a copy of
        assert n_held_out[label] == n_unique - round(0.8 * n_unique)
    gallery = opened(calibrated).retriever.gallery
    indexed = {item.id for item in gallery.items(np.arange(gallery.n_items))}
    files = {path.relative_to(many).as_posix() for path in many.glob("*/*")}
    assert indexed == files - set(held_out)
    assert (
        calibrated.n_held_out
        == len(held_out)
        == opened(calibrated).manifest.calibration["n_queries"]
    )


def test_its_items_keep_their_own_vectors(calibrated: Outcome, many: Path) -> None:
    retriever = opened(calibrated).retriever
    for item in retriever.gallery.items(np.arange(0, calibrated.n_items, 7)):
        answer = retriever.search((many / item.id).read_bytes(), limit=2)
        assert item.id in {match.item.id for match in answer.matches}
        assert answer.matches[0].similarity == pytest.approx(1, abs=1e-5)


def test_its_answers_are_matches_with_probabilities(
    calibrated: Outcome, held_out: list[str], many: Path
) -> None:
    images = [(many / name).read_bytes() for name in held_out]
    bundle = opened(calibrated)
    counted = n_right(bundle, images, [name.split("/")[0] for name in held_out])
    assert counted["match"] > 0.6 * len(images)
    assert counted["right"] >= 0.95 * counted["match"]
    noise = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 3), dtype=np.uint8)
    prepared = np.stack([bundle.retriever.encoder.metadata.preprocessing(one) for one in noise])
    answers = [bundle.retriever.find(one, 1) for one in bundle.retriever.embed(prepared)]
    assert sum(one.decision.verdict == "match" for one in answers) <= 4
    assert all(one.matches[0].match_probability is not None for one in answers)


def test_without_labels_queries_are_views(at: At, many: Path) -> None:
    indexing = replace(at(many), source=open_source(many, labelled=False), calibrate=True)
    outcome = index_collection(indexing)
    assert (outcome.n_held_out, outcome.n_items) == (0, N_IMAGES + 1)
    bundle = opened(outcome)
    assert bundle.manifest.calibration["report"]["queries"] == "views_of_items"
    assert bundle.manifest.calibration["n_queries"] == N_IMAGES + 1
    assert lines(indexing.directory / "held_out.jsonl") == []
    drawings = from_files(many, ["3/0003.png"], ["3"])
    again = view(drawings.pixels(0), np.random.default_rng(5))
    prepared = bundle.retriever.encoder.metadata.preprocessing(again)
    answer = bundle.retriever.find(bundle.retriever.embed(prepared[None])[0], 1)
    assert answer.decision.verdict != "not_calibrated"
    assert answer.matches[0].match_probability is not None


def test_the_same_bundle_comes_of_it_however_it_was_made(
    calibrated: Outcome, asked: Indexing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(asked, n_workers=1, directory=tmp_path / "run", bundles=tmp_path / "bundles")
    with monkeypatch.context() as broken:
        broken.setattr("index_builder.indexing.collection.calibrate_collection", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index_collection(other)
    outcome = index_collection(other)
    assert outcome.n_kept == N_IMAGES + 1
    assert outcome.bundle.name == calibrated.bundle.name


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("way_in", [index_collection, rehearse])
def test_too_few_are_refused_before_anything_is_embedded(
    indexing: Indexing, way_in: Callable[[Indexing], object]
) -> None:
    with pytest.raises(CalibrationError, match=r"is 4\d queries .* at least 50 are needed"):
        way_in(replace(indexing, calibrate=True))
    assert not list(indexing.directory.glob("shards/*"))


def test_a_single_label_is_refused(at: At, many: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied" / "0"
    copied.mkdir(parents=True)
    for path in (many / "0").iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CalibrationError, match="the same label"):
        index_collection(replace(at(copied.parent), calibrate=True))


def test_few_images_without_labels_are_refused(at: At, many: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for path in sorted((many / "1").iterdir())[:20]:
        (few / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CalibrationError, match="20 images to make queries of; at least 50"):
        index_collection(replace(at(few), calibrate=True))


def test_an_index_that_does_not_fit_is_refused_before_anything_is_embedded(
    indexing: Indexing,
) -> None:
    with pytest.raises(ConfigError, match="--memory-budget"):
        index_collection(replace(indexing, index=IndexSettings("flat", 1000)))
    assert not list(indexing.directory.glob("shards/*"))


def test_what_was_held_out_is_said(calibrated: Outcome, asked: Indexing) -> None:
    summary = json.loads((asked.directory / "index.json").read_text(encoding="utf-8"))
    assert summary["n_held_out"] == calibrated.n_held_out
    assert summary["n_items"] + summary["n_held_out"] == N_IMAGES + 1
    said = dict(calibrated.rows(asked.directory))
    assert said["held out"].startswith(f"{calibrated.n_held_out}: ")
    assert said["calibrated"].startswith(f"with {calibrated.n_held_out} held-out images; ")

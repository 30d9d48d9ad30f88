"""A collection calibrates itself: its images, or views of them, are the queries."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from index_builder.datasets.corruption import view
from index_builder.datasets.images import from_files
from index_builder.indexing.blocks import NONE
from index_builder.indexing.collection import Indexing, IndexingResult, index_collection
from index_builder.indexing.dry_run import inspect_collection
from index_builder.indexing.recalibrate import recalibrate_bundle
from index_builder.indexing.sources import open_source
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.manifest import ENCODER_FILE
from model_store.decision import Calibration
from model_store.errors import CalibrationError, ConfigError
from model_store.gallery import IndexSettings
from tests.support.build_command import vouch_build
from tests.support.collection_files import write_drawings
from tests.support.narrowing import not_none

N_IMAGES, N_NEW = 320, 80

At = Callable[[Path], Indexing]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawings of ten labels, one of them twice."""
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


def copies(root: Path, drawings: Path, saved: Callable[[Path, int], bytes]) -> Path:
    """Sixty files for each of six pictures."""
    for label, path in enumerate(sorted(drawings.rglob("*.png"))[:6]):
        (root / str(label)).mkdir(parents=True)
        for number in range(60):
            (root / str(label) / f"{number}.png").write_bytes(saved(path, number))
    return root


def test_labels_of_copies_are_refused_before_anything_is_embedded(
    asked: Indexing, many: Path, tmp_path: Path
) -> None:
    source = open_source(copies(tmp_path / "copies", many, lambda path, _: path.read_bytes()))
    indexing = replace(asked, source=source, directory=tmp_path / "run")
    for refuses in (inspect_collection, index_collection):
        with pytest.raises(CalibrationError, match=r"There are 0 queries .* at least 50"):
            refuses(indexing)
    assert not list((tmp_path / "run" / "shards").iterdir())


def test_labels_of_one_picture_in_many_files_are_refused(
    asked: Indexing, many: Path, tmp_path: Path
) -> None:
    def saved(path: Path, number: int) -> bytes:
        return encoded(Image.open(path).resize((120, 120)), text=number)

    def encoded(image: Image.Image, text: int) -> bytes:
        written, file = PngInfo(), BytesIO()
        written.add_text("Title", str(text))
        image.save(file, "PNG", pnginfo=written)
        return file.getvalue()

    source = open_source(copies(tmp_path / "copies", many, saved))
    indexing = replace(asked, source=source, directory=tmp_path / "run")
    with pytest.raises(CalibrationError, match=r"There are 0 queries .* not counting copies"):
        index_collection(indexing)


@pytest.fixture(scope="module")
def calibrated(asked: Indexing) -> IndexingResult:
    return index_collection(asked)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Drawings that are not in the collection; the folder of each is its label."""
    root = tmp_path_factory.mktemp("new")
    write_drawings(root, N_IMAGES + N_NEW)
    return sorted(root.rglob("*.png"), key=lambda path: path.name)[N_IMAGES:]


def opened(outcome: IndexingResult) -> Bundle:
    return open_bundle(outcome.bundle.parent, "cpu", threads=1)


def n_right(bundle: Bundle, images: list[bytes], names: list[str]) -> Counter[str]:
    """Verdicts, and among ``match`` how many first results are what was asked for."""
    counted: Counter[str] = Counter()
    for image, name in zip(images, names, strict=True):
        answer = bundle.retriever.search(image)
        counted[answer.decision.verdict] += 1
        if answer.decision.verdict == "match":
            first = answer.matches[0]
            counted["right"] += name in {first.id, first.label}
    return counted


def test_each_image_is_an_item_and_a_query(calibrated: IndexingResult, many: Path) -> None:
    gallery = opened(calibrated).retriever.gallery
    indexed = {item.id for item in gallery.items(np.arange(gallery.n_items))}
    assert indexed == {path.relative_to(many).as_posix() for path in many.glob("*/*")}
    calibration = not_none(opened(calibrated).manifest.calibration)
    assert calibration["report"]["queries"] == "left_out_items"
    assert calibration["n_queries"] == calibrated.n_items == N_IMAGES + 1


def test_labels_of_one_image_count_as_absent_queries(
    at: At, many: Path, new: list[Path], tmp_path: Path
) -> None:
    """Served queries may show them; a refit counts them again."""
    shutil.copytree(many, tmp_path / "lone")
    for path in new:
        (tmp_path / "lone" / path.stem).mkdir()
        shutil.copy(path, tmp_path / "lone" / path.stem)
    outcome = index_collection(replace(at(tmp_path / "lone"), calibrate=True))
    fitted = not_none(opened(outcome).retriever.calibration)
    assert fitted.evidence.lone_share == pytest.approx(N_NEW / (N_IMAGES + 1 + N_NEW))
    again = recalibrate_bundle(outcome.bundle.parent, {})
    refit = not_none(Calibration.load(again))
    assert refit.evidence.lone_share == pytest.approx(fitted.evidence.lone_share)


def test_its_items_keep_their_own_vectors(calibrated: IndexingResult, many: Path) -> None:
    retriever = opened(calibrated).retriever
    for item in retriever.gallery.items(np.arange(0, calibrated.n_items, 7)):
        answer = retriever.search((many / item.id).read_bytes(), limit=2)
        assert item.id in {match.id for match in answer.matches}
        assert answer.matches[0].similarity == pytest.approx(1, abs=1e-5)


def test_its_answers_are_matches_with_probabilities(
    calibrated: IndexingResult, new: list[Path]
) -> None:
    images = [path.read_bytes() for path in new]
    bundle = opened(calibrated)
    counted = n_right(bundle, images, [path.parent.name for path in new])
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
    assert outcome.n_items == N_IMAGES + 1
    bundle = opened(outcome)
    calibration = not_none(bundle.manifest.calibration)
    assert calibration["report"]["queries"] == "views_of_items"
    assert calibration["n_queries"] == N_IMAGES + 1
    # The absent queries are the same views. Original pictures would be more ordinary than views.
    fitted = not_none(bundle.retriever.calibration)
    absent = not_none(fitted.absent_outlier_scores)
    assert np.median(absent) >= np.median(fitted.outlier_scores)
    drawings = from_files(many, ["3/0003.png"], ["3"])
    again = view(drawings.pixels(0), np.random.default_rng(5))
    prepared = bundle.retriever.encoder.metadata.preprocessing(again)
    answer = bundle.retriever.find(bundle.retriever.embed(prepared[None])[0], 1)
    assert answer.decision.verdict != "not_calibrated"
    assert answer.matches[0].match_probability is not None


def test_the_same_bundle_comes_of_it_however_it_was_made(
    calibrated: IndexingResult, asked: Indexing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize("way_in", [index_collection, inspect_collection])
def test_too_few_are_refused_before_anything_is_embedded(
    at: At, tmp_path: Path, way_in: Callable[[Indexing], object]
) -> None:
    (tmp_path / "few").mkdir()
    write_drawings(tmp_path / "few", 49)
    indexing = replace(at(tmp_path / "few"), calibrate=True)
    with pytest.raises(CalibrationError, match=r"are 49 queries .* at least 50 are needed"):
        way_in(indexing)
    assert not list(indexing.directory.glob("shards/*"))


def test_a_single_label_is_refused(at: At, many: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied" / "0"
    copied.mkdir(parents=True)
    for path in (many / "0").iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CalibrationError, match="The gallery has 1 label"):
        index_collection(replace(at(copied.parent), calibrate=True))


def test_few_images_without_labels_are_refused(at: At, many: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for path in sorted((many / "1").iterdir())[:20]:
        (few / path.name).write_bytes(path.read_bytes())
    with pytest.raises(
        CalibrationError, match=r"There are 20 queries to calibrate with; at least 50"
    ):
        index_collection(replace(at(few), calibrate=True))


def test_an_index_that_does_not_fit_is_refused_before_anything_is_embedded(
    indexing: Indexing,
) -> None:
    with pytest.raises(ConfigError, match="--memory-budget"):
        index_collection(replace(indexing, index=IndexSettings("flat", 1000)))
    assert not list(indexing.directory.glob("shards/*"))


def test_the_table_of_the_calibration_has_all_numbers(asked: Indexing) -> None:
    table = (asked.directory / "calibration.md").read_text(encoding="utf-8")
    assert f"| n matched | {N_IMAGES + 1} |" in table
    assert "| cross fitted: recall at 1 | " in table


PROMISES = {
    "max_error": 0.21,
    "max_false_match_rate": 0.31,
    "expected_absent": 0.11,
    "alpha": 0.07,
    "coverage": 0.81,
}


def options(promises: dict[str, float]) -> list[str]:
    return [
        word
        for name, value in promises.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def test_what_answers_promise_are_options_of_the_command(
    digits_bundle: Path, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")  # a narrow help cuts names off
    command = ["index", str(many), "--encoder", str(digits_bundle), "--calibrate"]
    done = vouch_build(*command, *options(PROMISES), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == f"Next: vouch-serve --bundle bundles/{many.name}"
    calibration = open_bundle(tmp_path / "bundles" / many.name).retriever.calibration
    assert calibration is not None
    assert {name: getattr(calibration, name) for name in PROMISES} == PROMISES
    helped = " ".join(vouch_build("index", "--help", cwd=tmp_path).stdout.split())
    assert all(f"--{name.replace('_', '-')}" in helped for name in PROMISES)


@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize("value", ["0", "1", "-0.1", "nan"])
def test_a_promise_that_is_no_share_is_refused(
    digits_bundle: Path, many: Path, tmp_path: Path, name: str, value: str
) -> None:
    option = f"--{name.replace('_', '-')}"
    command = ["index", str(many), "--encoder", str(digits_bundle), "--calibrate", option, value]
    done = vouch_build(*command, cwd=tmp_path)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert f"{option} " in said
    assert ": wanted a number above 0 and below 1." in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", PROMISES)
def test_promises_are_for_calibrated_answers(
    digits_bundle: Path, many: Path, tmp_path: Path, name: str
) -> None:
    option = options({name: 0.05})
    done = vouch_build("index", str(many), "--encoder", str(digits_bundle), *option, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{option[0]} needs --calibrate" in " ".join(done.stderr.split())
    done = vouch_build("index", "--config", "digits", *option, cwd=tmp_path)
    assert done.returncode == 2
    assert "[calibration]" in " ".join(done.stderr.split())


@pytest.mark.parametrize("kind", ["folder", "manifest"])
def test_the_advice_for_one_picture_a_label_works(
    digits_bundle: Path, many: Path, tmp_path: Path, kind: str
) -> None:
    """A catalogue of products, one picture each: a label says nothing that the id does not."""
    source = tmp_path / "catalogue"
    drawings = sorted(many.glob("[1-9]/*.png"))[:80]
    rows = []
    for number, drawing in enumerate(drawings):
        folder = source / f"product-{number}"
        folder.mkdir(parents=True)
        (folder / "front.png").write_bytes(drawing.read_bytes())
        rows.append(f"product-{number}/front.png,product {number}")
    if kind == "manifest":
        (source / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n", "utf-8")
    asked = source / "list.csv" if kind == "manifest" else source
    command = ["index", str(asked), "--encoder", str(digits_bundle), "--calibrate"]
    command += ["--name", "catalogue"]
    refused = vouch_build(*command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "use --no-labels" in " ".join(refused.stderr.split())
    done = vouch_build(*command, "--no-labels", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    bundle = open_bundle(tmp_path / "bundles" / "catalogue")
    calibration = bundle.retriever.calibration
    assert calibration is not None
    assert calibration.report["queries"] == "views_of_items"
    answer = bundle.retriever.search(drawings[0].read_bytes())
    first = answer.matches[0]
    assert (first.id, first.label) == ("product-0/front.png", None)
    assert first.match_probability is not None
    wanted = {"label": "product 0"} if kind == "manifest" else {}
    assert dict(first.metadata) == wanted

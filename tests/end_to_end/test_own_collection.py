"""Any collection, through the command line, to answers over HTTP with probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from index_builder.vectors.encoder_file import find_encoder
from model_store.bundles.directory import locate
from model_store.bundles.manifest import read_manifest
from tests.end_to_end.processes import Service
from tests.support.build_command import vouch_build
from tests.support.collection_files import write_drawings

N_IMAGES, N_NEW = 320, 80


@pytest.fixture(scope="module")
def place(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a collection was indexed and calibrated."""
    directory = tmp_path_factory.mktemp("place")
    (directory / "shelf").mkdir()
    write_drawings(directory / "shelf", N_IMAGES + N_NEW)
    for path in sorted((directory / "shelf").rglob("*.png"), key=lambda one: one.name)[N_IMAGES:]:
        new = directory / "new" / path.parent.name
        new.mkdir(parents=True, exist_ok=True)
        path.rename(new / path.name)
    command = ["index", "shelf", "--encoder", str(digits_bundle), "--calibrate", "--index", "hnsw"]
    done = vouch_build(*command, "--memory-budget", "64MiB", "--min-recall", "0.9", cwd=directory)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to("bundles/shelf")
    return directory


def test_new_images_are_matches_and_each_image_is_found(place: Path, tmp_path: Path) -> None:
    new = sorted((place / "new").rglob("*.png"))
    with Service(place / "bundles" / "shelf", tmp_path / "log") as service:
        answers = [service.answer(path.read_bytes(), gallery="shelf") for path in new]
        described = service.http.get("/v1/galleries/shelf/calibration").json()
        for path in sorted((place / "shelf").rglob("*.png"))[::40]:
            found = service.answer(path.read_bytes(), gallery="shelf")
            assert found["results"][0]["id"] == path.relative_to(place / "shelf").as_posix()
    matches = [
        (answer["results"][0], path)
        for answer, path in zip(answers, new, strict=True)
        if answer["verdict"] == "match"
    ]
    assert len(matches) > len(new) / 2
    right = [first["label"] == path.parent.name for first, path in matches]
    assert sum(right) >= 0.95 * len(matches)
    assert min(first["match_probability"] for first, _ in matches) > 0.5
    assert {answer["bundle"]["calibration"]["status"] for answer in answers} == {"valid"}
    assert (described["n_queries"], described["queries"]) == (N_IMAGES, "left_out_items")


def test_the_index_is_the_one_that_was_asked_for(place: Path) -> None:
    manifest = read_manifest(locate(place / "bundles" / "shelf"))
    assert manifest.gallery["index"]["kind"] == "hnsw"
    assert manifest.gallery["index"]["n_bytes"] <= 64 * 2**20
    assert manifest.gallery["index"]["recall_at_10"] >= 0.9


@pytest.mark.parametrize(
    ("options", "said", "status"),
    [
        (("--memory-budget", "1000", "--index", "flat"), "the budget is 1,000", 1),
        (("--memory-budget", "lots"), "is not a size", 2),
        (("--memory-budget", "0"), "is not above 0", 2),
    ],
)
def test_what_cannot_be_is_said(
    place: Path, options: tuple[str, ...], said: str, status: int
) -> None:
    encoder = str(find_encoder(place / "bundles" / "shelf"))
    done = vouch_build("index", "shelf", "--encoder", encoder, *options, cwd=place)
    assert done.returncode == status
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", [("--calibrate",), ("--index", "flat")])
def test_a_configuration_has_its_own_words_for_it(tmp_path: Path, option: tuple[str, ...]) -> None:
    done = vouch_build("index", "--config", "digits", *option, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{option[0]} cannot be given with --config" in " ".join(done.stderr.split())

"""Any collection, through the command line, to answers over HTTP with probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from index_builder.vectors.encoder_file import find_encoder
from model_store.bundles.directory import locate
from model_store.bundles.manifest import read_manifest
from tests.end_to_end.processes import Service
from tests.support.build_command import vouch_build
from tests.support.collection_files import lines, write_drawings

N_IMAGES = 320


@pytest.fixture(scope="module")
def place(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a collection was indexed and calibrated."""
    directory = tmp_path_factory.mktemp("place")
    (directory / "shelf").mkdir()
    write_drawings(directory / "shelf", N_IMAGES)
    command = ["index", "shelf", "--encoder", str(digits_bundle), "--calibrate", "--index", "hnsw"]
    done = vouch_build(*command, "--memory-budget", "64MiB", "--min-recall", "0.9", cwd=directory)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to("bundles/shelf")
    return directory


def test_held_out_images_are_matches(place: Path, tmp_path: Path) -> None:
    held_out = [line["id"] for line in lines(place / "runs" / "shelf" / "index" / "held_out.jsonl")]
    assert len(held_out) >= 50
    with Service(place / "bundles" / "shelf", tmp_path / "log") as service:
        answers = [
            service.answer((place / "shelf" / name).read_bytes(), gallery="shelf")
            for name in held_out
        ]
        described = service.http.get("/v1/galleries/shelf/calibration").json()
    matches = [
        (answer["results"][0], name)
        for answer, name in zip(answers, held_out, strict=True)
        if answer["verdict"] == "match"
    ]
    assert len(matches) > len(held_out) / 2
    right = [first["label"] == name.split("/")[0] for first, name in matches]
    assert sum(right) >= 0.95 * len(matches)
    assert min(first["match_probability"] for first, _ in matches) > 0.5
    assert {answer["bundle"]["calibration"]["status"] for answer in answers} == {"valid"}
    manifest = read_manifest(locate(place / "bundles" / "shelf"))
    assert manifest.calibration is not None
    n_items = manifest.calibration["report"]["n_leave_one_out"]
    assert (described["n_queries"], described["queries"]) == (
        len(held_out) + n_items,
        "held_out_images",
    )


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

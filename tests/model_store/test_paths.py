"""Names that a file gives become paths below its directory, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.files import inside, relative_name

OUTSIDE = (
    *("..", "../a", "a/../b", "a/..", "/", "/etc/passwd", "//etc/passwd", "", ".", "./a", "a//b"),
    *("a/", "a/./b", "\\a", "..\\a", "C:a", "c:/a", "a\0", "a\nb", "a\x7f", "\ud800", "x" * 256),
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_relative_name_outside_is_refused(name: str, tmp_path: Path) -> None:
    for check in (relative_name, lambda name: inside(tmp_path, name)):
        with pytest.raises(ValueError, match="is not a path inside its directory"):
            check(name)


@pytest.mark.parametrize("name", ["a", "a/b.png", "..a", ".a", "ab:c", "ä/日本.png", "x" * 255])
def test_inside_ordinary_name_is_below_the_directory(name: str, tmp_path: Path) -> None:
    assert inside(tmp_path, name) == tmp_path / name


def test_inside_link_out_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("inside")
    (root / "out").symlink_to(tmp_path)
    (root / "in").symlink_to(root / "file")
    (tmp_path / "linked").symlink_to(root)  # the directory itself may be reached by a link
    assert inside(tmp_path / "linked", "in").read_text() == "inside"
    for name in ("out", "out/secret"):
        with pytest.raises(ValueError, match="link out"):
            inside(root, name)

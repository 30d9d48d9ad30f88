"""A run works in a directory of its own, and never in a folder with the files of a user."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.support.build_command import vouch_build

OWN = ("images/animals/a.jpg", "index/notes.txt", "index/source/a.txt", "bundle/b.txt")
"""Files of a user whose names are also in run directories."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user, with an archive, a table and a configuration to build from."""
    for name in (*OWN, "photos/x/1.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    with tarfile.open(tmp_path / "animals.tar", "w") as file:
        file.add(tmp_path / "photos", "photos")
    (tmp_path / "animals.csv").write_text("path,label\nphotos/x/1.jpg,x\n")
    (tmp_path / "own.toml").write_text('name = "own"\ndataset = {kind = "folder", path = "photos"}')
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "all --images animals.tar",
        "all --images animals.csv",
        "all --images animals.tar --dry-run",
        "all --images photos",
        "index photos",
        "index photos --no-resume --dry-run",
        "index -c own.toml",
        "train -c own.toml",
        "fit -c own.toml",
        "export -c own.toml",
        "publish -c own.toml",
        "calibrate -c own.toml",
        "evaluate -c own.toml",
    ],
)
def test_a_folder_of_a_user_is_no_run_directory(folder: Path, command: str) -> None:
    before = sorted(folder.rglob("*"))
    done = vouch_build(*command.split(), "--run", ".", cwd=folder)
    assert done.returncode == 1
    assert "is not the directory of a run, but it has files, for example 'animals.csv'" in (
        done.stderr
    )
    assert "Name a new or empty directory with --run." in done.stderr
    assert sorted(folder.rglob("*")) == before
    assert [(folder / name).read_text() for name in OWN] == list(OWN)

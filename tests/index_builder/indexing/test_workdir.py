"""The directory that a run works in: what begins anew, what is resumed, and that one run has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from index_builder.indexing.workdir import Work, occupied, require_own
from model_store.errors import OutputError, RunInUse


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """A directory below others that are not there yet, with something of an earlier run in each."""
    work = Work(tmp_path / "runs" / "index")
    work.begin(resume=False)
    for directory in (work.store.directory, work.source, work.fetched, work.bundle):
        directory.mkdir(exist_ok=True)
        (directory / "earlier").touch()
    for file in (work.catalogue, work.vectors, work.summary, work.quarantine):
        file.touch()
    return work


def test_what_was_embedded_is_there_to_be_resumed(work: Work) -> None:
    work.begin(resume=True)
    for directory in (work.store.directory, work.source, work.fetched, work.bundle):
        assert (directory / "earlier").exists(), directory.name
    assert work.catalogue.exists()
    assert work.vectors.exists()


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_begins_anew_keeps_the_reports_alone(work: Work, times: int) -> None:
    for _ in range(times):  # once there is nothing left that could be removed
        work.begin(resume=False)
    assert sorted(work.directory.iterdir()) == sorted(
        [work.store.directory, work.source, work.summary, work.quarantine]
    )
    assert not list(work.source.iterdir())
    assert not list(work.store.directory.iterdir())


def test_one_run_at_a_time_has_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "index"
    for _ in range(2):  # the next has it after the first
        with occupied(directory) as work:
            assert work.directory == directory
            with pytest.raises(RunInUse, match="name another --run"), occupied(directory):
                pass


@pytest.mark.parametrize(
    "names",
    [
        ["lock", "config.toml"],
        ["index/lock"],
        ["training.json", "checkpoint.safetensors"],
        ["training.json", "members/0"],
        [".DS_Store"],
    ],
)
def test_the_directory_of_an_earlier_run_is_used_again(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with occupied(tmp_path):
        require_own(tmp_path)


@pytest.mark.parametrize("name", ["index/photo.jpg", "bundle/a", "config.toml", "training.json"])
def test_a_directory_of_others_is_refused_and_gets_no_lock(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match="is not the directory of a run"), occupied(tmp_path):
        pass
    assert sorted(tmp_path.rglob("*")) == before

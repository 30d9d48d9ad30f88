"""Variables of the environment that a file can replace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from model_store.errors import ConfigError
from model_store.gallery.opening import DatabaseAccess
from model_store.programs import variable

NAME = "VOUCH_POSTGRES_URI"
URI = "postgresql://vouch:hunter2@db.example/vouch"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of secrets, and no other variable of a database."""
    for name in (NAME, "VOUCH_MILVUS_URI", "VOUCH_MILVUS_TOKEN", "VOUCH_MILVUS_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VOUCH_SECRETS_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", [NAME, NAME.lower()])
def test_access_to_databases_is_read_from_files(secrets: Path, name: str) -> None:
    (secrets / name).write_text(f"{URI}\n", encoding="utf-8")
    (secrets / "vouch_milvus_token").write_text("a:b", encoding="utf-8")
    access = DatabaseAccess.of_environment(None, 1)
    assert (access.postgres.uri, access.milvus.token, access.milvus.log) == (URI, "a:b", None)


def test_variable_precedes_its_file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / NAME.lower()).write_text("postgresql://other/vouch", encoding="utf-8")
    monkeypatch.setenv(NAME, URI)
    assert variable(NAME) == URI
    monkeypatch.setenv(NAME, "")
    assert variable(NAME) == "postgresql://other/vouch"


def test_empty_file_is_no_value(secrets: Path) -> None:
    (secrets / NAME.lower()).write_text("\n", encoding="utf-8")
    assert variable(NAME) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"hunter2\xff\xfe"),
        lambda path: path.symlink_to("missing"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ],
    ids=["no text", "a link to nothing", "a directory", "a pipe"],
)
def test_file_that_cannot_be_read_is_named(secrets: Path, make: Callable[[Path], object]) -> None:
    make(secrets / NAME.lower())
    with pytest.raises(ConfigError, match=f"{NAME.lower()} must be a text file") as refused:
        variable(NAME)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("folder", ["missing", "a\0b"], ids=["missing", "impossible"])
def test_directory_that_cannot_be_read_is_refused(
    secrets: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"VOUCH_SECRETS_DIR": str(secrets / folder)}
    monkeypatch.setattr(os, "environ", environment)  # the system would refuse a null character
    with pytest.raises(ConfigError, match="VOUCH_SECRETS_DIR must be a directory"):
        variable(NAME)

"""The files that commands write: whole, or as before."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from index_builder.certificates.verification import write_certificate
from index_builder.output import replacing_output, write_output, write_table
from model_store.errors import CertificateError, OutputError

FULL = "No space left on device"


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each file of text or bytes be written only in part."""
    write_text, write_bytes = Path.write_text, Path.write_bytes

    def part_of_text(path: Path, text: str, **options: str) -> int:
        write_text(path, text[:3], **options)
        raise OSError(errno.ENOSPC, FULL)

    def part_of_bytes(path: Path, content: bytes) -> int:
        if path.name.endswith("json.partial"):
            return write_bytes(path, content)
        write_bytes(path, content[:3])
        raise OSError(errno.ENOSPC, FULL)

    monkeypatch.setattr(Path, "write_text", part_of_text)
    monkeypatch.setattr(Path, "write_bytes", part_of_bytes)


def test_an_output_replaces_an_earlier_file_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_output(path, "first")
    path.chmod(0o640)
    write_output(path, "sécond")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == ("sécond".encode(), 0o640)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.usefixtures("full_disk")
def test_an_output_on_a_full_disk_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with pytest.raises(OutputError, match=rf"out.json: {FULL}. No file was written. Free disk"):
        write_output(path, "second")
    assert not [*tmp_path.iterdir()]
    with path.open("w") as file:
        file.write("first")
    with pytest.raises(OutputError, match=r"The earlier file is unchanged\. Free disk"):
        write_output(path, "second")
    with pytest.raises(OutputError, match="The earlier file is unchanged"):
        write_table(path, "a", {"b": 1})
    assert path.read_text() == "first"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.usefixtures("full_disk")
def test_a_certificate_on_a_full_disk_leaves_the_earlier_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index_builder.certificates.verification.page", lambda *_: "page")
    earlier = {tmp_path / f"certificate.{kind}": kind for kind in ("json", "html")}
    for path, text in earlier.items():
        with path.open("w") as file:
            file.write(text)
    with pytest.raises(CertificateError, match=FULL):
        write_certificate({}, None, tmp_path)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == earlier


def test_links_pipes_and_devices_are_written_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("first")
    (tmp_path / "link").symlink_to("target")
    write_output(tmp_path / "link", "second")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "second"
    (tmp_path / "hard").hardlink_to(tmp_path / "target")
    write_output(tmp_path / "hard", "third")
    assert (tmp_path / "target").read_text() == "third"

    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_output(tmp_path / "pipe", "through")
    reader.join(timeout=10)
    assert read == ["through"]
    assert (tmp_path / "pipe").is_fifo()

    with pytest.raises(OutputError, match=rf"/dev/full: {FULL}. Its content may be incomplete"):
        write_output(Path("/dev/full"), "text")
    with pytest.raises(OutputError, match="Is a directory"):
        write_output(tmp_path, "text")


def test_a_file_in_a_folder_that_cannot_be_written_is_written_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("first")
    with replacing_output(path) as file:
        assert file != path
        file.touch()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with replacing_output(path) as file:
        assert file == path

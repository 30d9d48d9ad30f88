"""Each version of a file is opened once."""

from __future__ import annotations

from pathlib import Path

from index_builder.vectors.encoder_file import opened_once


def test_an_unchanged_file_is_opened_once_even_if_renamed(tmp_path: Path) -> None:
    read: list[Path] = []

    def opener(path: Path) -> bytes:
        read.append(path)
        return path.read_bytes()

    staged, final = tmp_path / "staged", tmp_path / "final"
    staged.write_bytes(b"one")
    assert opened_once(opener, staged) == b"one"
    staged.rename(final)
    assert opened_once(opener, final) == b"one"
    assert read == [staged]
    staged.write_bytes(b"another")
    staged.rename(final)
    assert opened_once(opener, final) == b"another"
    assert read == [staged, final]

"""What `vouch-mcp` refuses before it serves; that it serves is tested end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.client.client import VouchClient
from service.client.mcp_server import main


@pytest.mark.parametrize("key", ["hunter2\n", "hunter2 ", "hünter2", "\nhunter2"])
def test_mcp_key_that_cannot_be_sent_is_refused_unprinted(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOUCH_API_KEY", key)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    _, line = capsys.readouterr().err.splitlines()
    assert line.startswith("vouch-mcp: error: VOUCH_API_KEY: The API key has invalid")
    assert "nter2" not in line
    with pytest.raises(ValueError, match="Copy it again"):
        VouchClient("http://127.0.0.1", key)


def test_mcp_folder_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--images", f"{tmp_path},{tmp_path / 'missing'}"])
    assert ended.value.code == 2
    _, line = capsys.readouterr().err.splitlines()
    assert line == f"vouch-mcp: error: --images {tmp_path}/missing: there is no such directory."


@pytest.mark.parametrize("url", ["http://u:hunter2/@h", "ftp://hunter2", "http://u:hunter2@h:x"])
def test_mcp_address_that_is_none_is_refused_unprinted(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--url", url])
    _, line = capsys.readouterr().err.splitlines()
    assert line.startswith("vouch-mcp: error: --url ")
    assert "hunter2" not in line

"""Help and versions of `vouch-keys` and `vouch-mcp`; `vouch-serve` has its own tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from model_store.installation import installed_version
from service.access import command
from service.client import mcp_server
from tests.support.help_pages import readable

PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "vouch-keys": command.main,
    "vouch-mcp": mcp_server.main,
}
PAGES = [
    "vouch-keys",
    "vouch-keys create",
    "vouch-keys rotate",
    "vouch-keys revoke",
    "vouch-keys list",
    "vouch-mcp",
]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    program, *arguments = words
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program](arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_help_at_80_columns_is_readable(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = printed(capsys, *page.split(), "--help")
    readable(shown)
    assert shown.startswith(f"usage: {page} [OPTIONS]")
    assert printed(capsys, *page.split(), "-h") == shown


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_is_one_line(page: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = page.partition(" ")[0]
    assert printed(capsys, *page.split(), option) == f"{program} {installed_version()}\n"


@pytest.mark.parametrize("page", PAGES)
def test_an_unknown_option_has_status_2(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = page.split()
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program]([*words, "--abacus"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"usage: {program} ")

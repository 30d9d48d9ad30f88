from __future__ import annotations

import argparse
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from model_store.errors import KeysError
from service.access.command import _duration, _find, _parser, _replaced, _share, main
from service.access.keys import Keyring, mint, read_keys
from tests.end_to_end.keys import id_of, secret_of
from tests.end_to_end.processes import TIMEOUT_S, environment


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is not there yet, named in the environment."""
    path = tmp_path / "keys.json"
    monkeypatch.setenv("VOUCH_KEYS", str(path))
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed on standard output."""
    main(arguments)
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The key that is handed out."""
    [text] = said(capsys, *arguments).splitlines()
    return text


def test_a_key_is_made_and_is_good(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    text = made(capsys, "create", "shop", "--scope", "write", "--rate-limit", "9/minute")
    kept = Keyring(path).find(text)
    assert (kept.name, kept.scope, kept.rate_limit) == ("shop", "write", "9/minute")
    assert kept.expires_at is None


def test_a_key_says_how_often_its_queries_find_nothing_and_so_does_its_successor(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    old = made(capsys, "create", "shop", "--expected-absent", "0.3")
    assert Keyring(path).find(old).expected_absent == 0.3
    new = made(capsys, "rotate", id_of(old))
    assert Keyring(path).find(new).expected_absent == 0.3
    till = made(capsys, "create", "till")
    assert Keyring(path).find(till).expected_absent is None


def test_what_is_told_of_a_key_is_read_as_what_it_is() -> None:
    told = {
        "--expires": ("2d", "expires", timedelta(days=2)),
        "--expected-absent": ("0.3", "expected_absent", 0.3),
        "--max-items": ("7", "max_items", 7),
        "--max-galleries": ("2", "max_galleries", 2),
    }
    for option, (text, name, value) in told.items():
        assert getattr(_parser().parse_args(["create", "shop", option, text]), name) == value
    asked = _parser().parse_args(["--file", "keys.json", "rotate", "0", "--grace", "3h"])
    assert (asked.file, asked.grace) == (Path("keys.json"), timedelta(hours=3))


def test_unless_told_a_key_may_read(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    text = made(capsys, "create", "shop")
    assert Keyring(path).find(text).scope == "read"


def test_a_name_may_be_a_letter_or_a_hundred(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    for name in ("n", "n" * 100):
        made(capsys, "create", name)
    assert [len(key.name) for key in read_keys(path)] == [1, 100]


def test_it_is_shown_once(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    main(["create", "shop"])
    printed = capsys.readouterr()
    secret = secret_of(printed.out.strip())
    assert secret not in printed.err
    assert "shown only now" in printed.err
    assert secret not in said(capsys, "list") + path.read_text(encoding="utf-8")


def test_the_list_says_what_is_known_of_each(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    first = made(capsys, "create", "web shop", "--expires", "90d")
    second = made(capsys, "create", "till", "--scope", "admin", "--rate-limit", "5/minute")
    said(capsys, "revoke", id_of(second))
    header, one, other = said(capsys, "list").splitlines()
    assert header.split()[:3] == ["id", "scope", "state"]
    assert one.startswith(id_of(first))
    assert one.endswith("web shop")
    assert f"{datetime.now(UTC) + timedelta(days=90):%Y-%m-}" in one
    assert other.split()[:3] == [id_of(second), "admin", "revoked"]
    assert [line[header.index("name") :] for line in (one, other)] == ["web shop", "till"]
    expiry = other[header.index("expires") : header.index("rate limit")]
    assert expiry.strip() == "never"
    rates = [line[header.index("rate limit") : header.index("galleries")] for line in (one, other)]
    assert [rate.strip() for rate in rates] == ["the service's", "5/minute"]


@pytest.mark.parametrize(
    ("text", "lasts"),
    [
        ("45s", timedelta(seconds=45)),
        ("30m", timedelta(minutes=30)),
        ("24h", timedelta(hours=24)),
        ("90d", timedelta(days=90)),
        ("2w", timedelta(weeks=2)),
        ("0", timedelta()),
    ],
)
def test_a_key_ends_after_as_long_as_is_said(
    capsys: pytest.CaptureFixture[str], path: Path, text: str, lasts: timedelta
) -> None:
    made(capsys, "create", "shop", "--expires", text)
    [kept] = read_keys(path)
    assert kept.expires_at is not None
    assert abs(kept.expires_at - kept.created_at - lasts) < timedelta(seconds=5)


def test_a_key_that_replaces_another_is_told_of_with_the_one_that_it_replaces(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    """Without --grace the old one is good for the day that the help names."""
    old = made(capsys, "create", "shop")
    made(capsys, "rotate", id_of(old))
    replaced, successor = read_keys(path)
    assert replaced.id == id_of(old)
    assert replaced.expires_at is not None
    assert abs(replaced.expires_at - successor.created_at - timedelta(hours=24)) < timedelta(
        seconds=5
    )
    assert successor.expires_at is None


def test_a_rotated_key_is_good_for_the_time_of_grace(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    old = made(capsys, "create", "shop", "--scope", "admin")
    new = made(capsys, "rotate", id_of(old), "--grace", "2h")
    keyring = Keyring(path)
    assert keyring.find(new).scope == "admin"
    ends = keyring.find(old).expires_at
    assert ends is not None
    assert abs(ends - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=5)
    newest = made(capsys, "rotate", id_of(new), "--grace", "0")
    states = {key.id: key.state(datetime.now(UTC)) for key in read_keys(path)}
    assert states == {id_of(old): "active", id_of(new): "expired", id_of(newest): "active"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["revoke", "0" * 12], "no key '000000000000'"),
        (["rotate", "nonsense"], "no key 'nonsense'"),
        (["create", "two\nlines"], "not a valid name"),
        (["create", ""], "not a valid name"),
        (["create", "n" * 101], "not a valid name"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], path: Path, arguments: list[str], words: str
) -> None:
    made(capsys, "create", "shop")
    before = path.read_bytes()
    [line] = refusal(capsys, *arguments).splitlines()
    assert line.startswith("vouch-keys: ")
    assert words in line
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "shop", "--scope", "root"], "root"),
        (["create", "shop", "--expires", "soon"], "'soon' is not a duration"),
        (["create", "shop", "--rate-limit", "often"], "such as 600/minute"),
        (["create", "shop", "--searches", "often"], "such as 600/minute"),
        (["create", "shop", "--max-items", "many"], "--max-items: invalid int value: 'many'"),
        *(
            (["create", "shop", f"--expected-absent={share}"], f"'{share}' is not a share")
            for share in ("0", "1", "1.5", "-0.1", "half", "nan")
        ),
        (["rotate", "0", "--grace", "-1h"], "grace"),
        ([], "COMMAND"),
        ([], "usage: vouch-keys "),
    ],
)
def test_a_wrong_option_is_named(
    capsys: pytest.CaptureFixture[str], path: Path, arguments: list[str], words: str
) -> None:
    assert words in refusal(capsys, *arguments, status=2)
    assert not path.exists()


def test_a_file_must_be_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "VOUCH_KEYS" in refusal(capsys, "list")
    named = tmp_path / "named.json"
    made(capsys, "--file", str(named), "create", "shop")
    assert len(read_keys(named)) == 1


def test_damage_is_not_made_worse(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    path.write_text("{")
    for arguments in (["list"], ["create", "shop"]):
        assert "damaged" in refusal(capsys, *arguments)
    assert path.read_text() == "{"


@pytest.mark.process
def test_it_runs_as_a_command(path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "service.access.command",
        "--file",
        str(path),
        "create",
        "shop",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert Keyring(path).find(done.stdout.strip()).name == "shop"


def test_a_key_is_made_for_some_galleries_with_quotas(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    quotas = ("--searches", "100/month", "--max-items", "9", "--max-galleries", "2")
    text = made(capsys, "create", "acme", "--galleries", "acme-*,shoes", *quotas)
    kept = Keyring(path).find(text)
    assert kept.galleries == ("acme-*", "shoes")
    assert (kept.searches, kept.max_items, kept.max_galleries) == ("100/month", 9, 2)
    text = made(capsys, "rotate", kept.id)
    successor = Keyring(path).find(text)
    ignored = {"id", "sha256", "created_at", "expires_at"}
    assert successor.model_dump(exclude=ignored) == kept.model_dump(exclude=ignored)
    assert "acme-* shoes" in said(capsys, "list")
    assert "galleries" in refusal(capsys, "create", "acme", "--galleries", "../x")
    assert "max_items" in refusal(capsys, "create", "acme", "--max-items", "-1")


def test_a_whole_key_in_place_of_its_id_is_not_repeated(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    text = made(capsys, "create", "shop")
    with pytest.raises(SystemExit):
        main(["revoke", text])
    printed = capsys.readouterr().err
    assert "There is no key with that id" in printed
    assert secret_of(text) not in printed


def test_a_setting_that_is_wrong_is_named_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOUCH_REDIS_URL", "redis://:hunter2/@h")
    with pytest.raises(SystemExit):
        main(["list"])
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("vouch-keys: VOUCH_REDIS_URL: is not a valid address")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("text", "lasts"),
    [
        ("0", timedelta()),
        ("1s", timedelta(seconds=1)),
        ("999999h", timedelta(hours=999999)),
        *((text, None) for text in ("", "00", "x0", "0x", "1", "s", "7days", "x7d", "1234567s")),
    ],
)
def test_duration_is_a_number_and_one_unit(text: str, lasts: timedelta | None) -> None:
    if lasts is not None:
        assert _duration(text) == lasts
        return
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration"):
        _duration(text)


@pytest.mark.parametrize(
    ("text", "is_share"),
    [
        (repr(math.ulp(0.0)), True),
        (repr(math.nextafter(1, 0)), True),
        *((text, False) for text in ("0", "1", "-0.1", "nan", "half")),
    ],
)
def test_share_is_above_0_and_below_1(text: str, is_share: bool) -> None:
    if is_share:
        assert _share(text) == float(text)
        return
    with pytest.raises(argparse.ArgumentTypeError, match="share between 0 and 1"):
        _share(text)


def test_key_is_found_and_replaced_by_its_whole_id() -> None:
    ids = ("ab", "ca", "a", "bc")
    keys = [mint(one, "read")[0].model_copy(update={"id": one}) for one in ids]
    assert _find(keys, "a") is keys[2]
    for neighbour in ("b", "c", "abc"):
        with pytest.raises(KeysError, match="There is no key"):
            _find(keys, neighbour)
    changed = keys[2].model_copy(update={"name": "changed"})
    assert _replaced(keys, changed) == [keys[0], keys[1], changed, keys[3]]

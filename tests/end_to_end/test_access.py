"""Keys of a service that runs: who gets in, who is replaced, and what does not start."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.forked import completed
from tests.end_to_end.keys import KeysFile, bearer, id_of, secret_of
from tests.end_to_end.processes import TIMEOUT_S, Service, environment, wait_until

WAIT_S = 3
"""A change of the keys is followed within a second; a loaded machine may take a little longer."""

CLOCK_S = 0.05
"""Keys end by the wall clock, whose rate may be corrected meanwhile."""


def serve(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a `vouch-serve` that is expected to refuse to start."""
    return completed(["--provider", "cpu", *arguments], environment(variables))


def vouch_keys(keys_file: KeysFile, *arguments: str) -> str:
    """What `vouch-keys` prints."""
    command = [sys.executable, "-m", "service.access.command", "--file", str(keys_file.path)]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
        env=environment(),
    )
    return done.stdout.strip()


def status(service: Service, text: str) -> int:
    return service.http.get("/v1/galleries", headers=bearer(text)).status_code


def test_keys_are_made_rotated_and_revoked_while_it_serves(
    digits_bundle: Path, keys_file: KeysFile, tmp_path: Path, belonging: list[bytes]
) -> None:
    with Service(digits_bundle, tmp_path / "log", {"VOUCH_KEYS": str(keys_file.path)}) as service:
        assert service.ask(belonging[0]).status_code == 401
        old = vouch_keys(keys_file, "create", "shop")
        wait_until(lambda: status(service, old) == 200, service)
        both = time.monotonic()  # the grace begins within the command
        new = vouch_keys(keys_file, "rotate", id_of(old), "--grace", f"{WAIT_S}s")
        wait_until(lambda: status(service, new) == 200, service)
        of_old = status(service, old)
        if time.monotonic() - both < WAIT_S - CLOCK_S:  # else the machine was too slow to see it
            assert of_old == 200
        wait_until(lambda: status(service, old) == 401, service)
        assert time.monotonic() - both > WAIT_S - CLOCK_S
        assert status(service, new) == 200
        keys_file.path.rename(tmp_path / "lost.json")
        while "the earlier keys stay in use" not in service.printed():
            assert status(service, new) == 200
        assert status(service, new) == 200
        (tmp_path / "lost.json").rename(keys_file.path)
        vouch_keys(keys_file, "revoke", id_of(new))
        wait_until(lambda: status(service, new) == 401, service)
        for text in (old, new):
            assert id_of(text) in service.printed()
            assert secret_of(text) not in service.printed()


@pytest.mark.parametrize(
    "variables",
    [
        {"VOUCH_HOST": "0.0.0.0"},
        {"VOUCH_HOST": "::"},
        {"VOUCH_HOST": "0.0.0.0", "VOUCH_PUBLISHED_HOST": "0.0.0.0"},
        {"VOUCH_HOST": "0.0.0.0", "VOUCH_PUBLISHED_HOST": ""},
        {"VOUCH_HOST": "127.0.0.1", "VOUCH_PUBLISHED_HOST": "203.0.113.7"},
    ],
)
def test_a_public_service_without_keys_does_not_start(
    digits_bundle: Path, variables: dict[str, str]
) -> None:
    done = serve("--bundle", str(digits_bundle), **variables)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("vouch-serve: Other machines could reach this service at ")
    for remedy in ("vouch-keys create", "VOUCH_KEYS", "127.0.0.1", "VOUCH_ANONYMOUS=true"):
        assert remedy in line


def test_a_damaged_file_of_keys_is_refused(digits_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{")
    for path, why in ((tmp_path / "keys.json", "damaged"), (tmp_path / "none", "no file of keys")):
        done = serve("--bundle", str(digits_bundle), VOUCH_KEYS=str(path))
        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert why in line


@pytest.mark.parametrize(
    ("variables", "answer"),
    [
        ({"VOUCH_HOST": "0.0.0.0", "VOUCH_ANONYMOUS": "true"}, 200),
        ({"VOUCH_HOST": "0.0.0.0", "VOUCH_PUBLISHED_HOST": "127.0.0.1"}, 200),
        ({"VOUCH_HOST": "0.0.0.0", "VOUCH_KEYS": "keys.json"}, 401),
    ],
)
def test_one_that_was_meant_so_does(
    digits_bundle: Path,
    keys_file: KeysFile,
    tmp_path: Path,
    variables: dict[str, str],
    answer: int,
) -> None:
    if "VOUCH_KEYS" in variables:
        variables = {**variables, "VOUCH_KEYS": str(keys_file.path)}
    with Service(digits_bundle, tmp_path / "log", variables) as service:
        assert service.http.get("/v1/galleries").status_code == answer

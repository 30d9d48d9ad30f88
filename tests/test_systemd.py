"""The systemd units: `systemd-analyze` accepts them, and they fit the service."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import Settings
from service.start import GRACE_S
from tests.support.waiting import TIMEOUT_S, wait_until

UNITS = Path(__file__).parents[1] / "docker" / "systemd"
SERVICE = UNITS / "vouch@.service"
PROGRAM = re.compile(r"/opt/vouch/bin/[\w-]+")


def values(unit: Path) -> dict[str, list[str]]:
    """What a unit assigns to each key, in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text("utf-8").splitlines():
        key, assigned, value = line.partition("=")
        if assigned and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_units_are_accepted_by_systemd(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = PROGRAM.sub(sys.executable, unit.read_text("utf-8"))  # it wants to see the program
        (tmp_path / unit.name).write_text(text, "utf-8")
    names = [str(tmp_path / unit.name) for unit in UNITS.iterdir()]
    done = subprocess.run(
        ["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_service_accepts_the_environment_of_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in values(SERVICE)["Environment"]:
        for assignment in line.replace("%i", "8081").split():
            name, _, value = assignment.partition("=")
            assert not name.startswith("VOUCH_") or name[6:].lower() in Settings.model_fields
            monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.port == 8081
    assert settings.bundle == (Path("/var/lib/vouch/bundles"),)
    assert settings.drain_s > 0
    (seconds,) = values(SERVICE)["TimeoutStopSec"]
    assert int(seconds) > settings.drain_s + GRACE_S
    assert values(SERVICE)["KillMode"] == ["mixed"]  # a signal to decoders would end them first


def test_programs_of_the_units_are_those_of_the_package() -> None:
    project = (UNITS.parents[1] / "pyproject.toml").read_text("utf-8")
    programs = {
        Path(one).name for unit in UNITS.iterdir() for one in PROGRAM.findall(unit.read_text())
    }
    assert programs == {"vouch-build", "vouch-serve"}
    assert all(f"{program} = " in project for program in programs)


class Waiting:
    """The command that waits until a replica is ready, with a stand-in for `vouch-serve`."""

    def __init__(self, folder: Path, main: int, *, is_ready: bool) -> None:
        program = folder / "vouch-serve"
        program.write_text(
            "#!/bin/sh\n"
            + ("exit 0" if is_ready else f"echo not ready >&2; echo >{folder}/asked; exit 1")
        )
        program.chmod(0o700)
        (command,) = values(SERVICE)["ExecStartPost"]
        command = command.replace("/opt/vouch/bin/vouch-serve", str(program)).replace("$$", "$")
        variables = {"MAINPID": str(main), "PATH": os.defpath}
        self.popen = subprocess.Popen(
            shlex.split(command), env=variables, stderr=subprocess.PIPE, text=True
        )
        self.asked = folder / "asked"

    def ended(self) -> tuple[int, str]:
        """Its exit status, and what it printed."""
        try:
            printed = self.popen.communicate(timeout=TIMEOUT_S)[1]
        finally:
            self.popen.kill()
        return self.popen.returncode, printed


@pytest.mark.process
def test_start_ends_when_the_replica_is_ready_or_has_ended(tmp_path: Path) -> None:
    assert Waiting(tmp_path, os.getpid(), is_ready=True).ended() == (0, "")
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert Waiting(tmp_path, gone.pid, is_ready=False).ended() == (1, "")


@pytest.mark.process
def test_start_that_takes_too_long_says_why(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, os.getpid(), is_ready=False)
    wait_until(waiting.asked.exists)
    waiting.popen.terminate()
    assert waiting.ended() == (1, "not ready\n")

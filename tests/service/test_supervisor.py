"""Processes that are kept at work: started again, not too often, and ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.processes import supervisor
from service.processes.member import Member
from service.processes.several import Family
from service.processes.supervisor import Child, Supervisor
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.process

READY = "import os, sys, time; os.write(int(sys.argv[1]), b'1'); "
LASTING = READY + "time.sleep(60)"


class Processes:
    """Processes by the program of each start; what the supervisor has said of them."""

    def __init__(self, program: Callable[[int, int], str]) -> None:
        self._program = program
        self.started: list[tuple[int, float]] = []
        self.children: list[Child] = []
        self.lost: list[int] = []
        self.n_endings = 0

    def start(self, which: int) -> Child:
        ready, theirs = os.pipe()
        program = self._program(which, len(self.started))
        command = [sys.executable, "-S", "-E", "-c", program, str(theirs)]
        process = subprocess.Popen(command, pass_fds=[theirs])
        os.close(theirs)
        self.started.append((which, time.monotonic()))
        self.children.append(Child(process, ready))
        return self.children[-1]

    def end(self) -> None:
        self.n_endings += 1


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[..., Any]]:
    """The handlers of signals, which the process of the tests does not get."""
    found: dict[int, Callable[..., Any]] = {}
    monkeypatch.setattr("service.processes.supervisor.signal.signal", found.__setitem__)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(supervisor, "PATIENCE_S", 0.3)
    return found


def supervised(
    processes: Processes, n: int, handlers: dict[int, Callable[..., Any]], until: Callable[[], bool]
) -> bool:
    """Run until a condition holds, then as after a SIGTERM; what `run` returned."""
    watched = Supervisor(n, processes.start, processes.lost.append, processes.end, 0.2)
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(watched.run()))
    thread.start()

    def children_change() -> None:
        if signal.SIGCHLD in handlers:
            handlers[signal.SIGCHLD]()

    wait_until(lambda: until() or not thread.is_alive(), children_change)
    if thread.is_alive():
        handlers[signal.SIGTERM]()
    thread.join()
    assert all(child.process.poll() is not None for child in processes.children)
    return outcome[0]


def test_the_others_start_when_the_first_answers(handlers: dict[int, Callable[..., Any]]) -> None:
    processes = Processes(
        lambda which, _: ("" if which else "import time; time.sleep(0.2); ") + LASTING
    )
    assert supervised(processes, 3, handlers, lambda: len(processes.started) == 3)
    assert [which for which, _ in processes.started] == [0, 1, 2]
    assert processes.started[1][1] - processes.started[0][1] >= 0.2
    assert processes.n_endings == 1
    assert processes.lost == []


def test_one_that_cannot_start_is_not_tried_again(handlers: dict[int, Callable[..., Any]]) -> None:
    processes = Processes(lambda _, __: "raise SystemExit(1)")
    assert not supervised(processes, 2, handlers, lambda: False)
    assert len(processes.started) == 1


def test_one_that_dies_is_started_again_after_ever_longer_pauses(
    handlers: dict[int, Callable[..., Any]],
) -> None:
    processes = Processes(lambda which, _: READY if which else LASTING)
    assert supervised(processes, 2, handlers, lambda: len(processes.started) == 5)
    assert [which for which, _ in processes.started] == [0, 1, 1, 1, 1]
    times = [at for _, at in processes.started[1:]]
    for n, pause_s in enumerate((0.05, 0.1, 0.2)):
        assert times[n + 1] - times[n] >= pause_s
    assert processes.lost == [child.process.pid for child in processes.children[1:4]]


def test_one_that_does_not_end_is_killed(handlers: dict[int, Callable[..., Any]]) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LASTING
    processes = Processes(lambda which, _: LASTING if which else deaf)
    assert supervised(processes, 2, handlers, lambda: len(processes.started) == 2)
    assert processes.children[0].process.returncode == -signal.SIGKILL


MEMBER = """
import sys, time
from service.processes.member import Member
from service.processes.several import Family
member = Member.read(sys.argv[1])
hub = member.open_hub()
member.answers()
time.sleep(60)
"""


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    parent, hub = socket.socketpair()
    ready, theirs = os.pipe()
    with parent, hub:
        member = Member(0, 1, [], hub.fileno(), theirs, str(shared))
        command = [sys.executable, "-c", MEMBER, member.write()]
        with subprocess.Popen(command, pass_fds=member.numbers) as process:
            os.close(theirs)
            hub.close()
            assert os.read(ready, 1) == b"1"
            os.close(ready)
            assert process.poll() is None
            parent.close()
            assert process.wait(TIMEOUT_S) == -signal.SIGTERM
    assert not shared.exists()


def test_a_trial_that_fails_leaves_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    parent, hub = socket.socketpair()
    with parent:
        assert Family(["--abacus"], lambda: hub).tried_out() == 1
    assert "--abacus" in capfd.readouterr().err
    assert hub.fileno() == -1  # closed here

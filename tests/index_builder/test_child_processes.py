"""Child processes end with their parent."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

WAITS_FOR_WORK = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from index_builder.child_processes import SpawnedContext, end_with_parent

with ProcessPoolExecutor(1, SpawnedContext(), end_with_parent) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_child_ends_when_its_parent_is_killed(sent: signal.Signals) -> None:
    command = [sys.executable, "-c", WAITS_FOR_WORK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.send_signal(sent)
    gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone or child.status() == psutil.STATUS_ZOMBIE, "nobody may have waited for it"

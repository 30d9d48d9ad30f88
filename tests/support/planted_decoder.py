"""A decoder that a file takes over: it then tries to get at everything but pictures.

Run in place of `service.decoding.worker`. What its attempts came to it says in the words of a
refused picture.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_store.errors import CorruptImage
from model_store.images import DecodedImage, ImageLimits, decode_image
from service.decoding import worker

PLANTED = b"PLANTED"

_libc = ctypes.CDLL(None, use_errno=True)


def _called(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _memory_of(pid: int) -> None:
    """A piece of another process's stack, wherever that is."""
    with Path(f"/proc/{pid}/maps").open() as maps:
        stack = next(line for line in maps if "[stack]" in line)
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(int(stack.split("-")[0], 16))
        memory.read(16)


def _forks() -> None:
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def attempts(target: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """What it tries, by name."""
    parent, port = os.getppid() or target["pid"], target["port"]
    return {
        "keys": lambda: Path(target["keys"]).read_bytes(),
        "gallery": lambda: Path(target["gallery"]).read_bytes(),
        "a list of files": lambda: [*Path(target["directory"]).iterdir()],
        "a file of its own": lambda: Path(target["directory"], "planted").write_text("here"),
        "another name for a file": lambda: Path(target["directory"], "link").symlink_to("/"),
        "environment of the service": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
        "memory of the service": lambda: _memory_of(parent),
        "files of the service": lambda: os.open(f"/proc/{parent}/fd/0", os.O_RDONLY),
        "limits of the service": lambda: resource.prlimit(parent, resource.RLIMIT_CPU),
        "a signal to the service": lambda: os.kill(parent, 0),
        "a look into the service": lambda: _called(
            _libc.process_vm_readv(parent, None, 0, None, 0, 0)
        ),
        "a connection": lambda: socket.create_connection(("127.0.0.1", port), timeout=1),
        "a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(
            b"x", ("127.0.0.1", port)
        ),
        "a socket of this machine": lambda: socket.socket(socket.AF_UNIX),
        "a process": _forks,
        "a file in memory": lambda: os.memfd_create("planted"),
    }


def try_everything(data: bytes) -> str:
    """What came of each attempt."""
    outcomes = {}
    for name, attempt in attempts(json.loads(data.removeprefix(PLANTED))).items():
        try:
            attempt()
            outcomes[name] = "done"
        except OSError as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
    secrets = [name for name in os.environ if name.startswith("VOUCH_")]
    return json.dumps({"outcomes": outcomes, "secrets": secrets})


def decode(
    data: bytes, limits: ImageLimits | None = None, smallest_side: int | None = None
) -> DecodedImage:
    if data.startswith(PLANTED):
        raise CorruptImage(try_everything(data))
    return decode_image(data, limits, smallest_side)


vars(worker).update(decode_image=decode)

if __name__ == "__main__":
    worker.main()

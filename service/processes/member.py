"""A process as one of several of a service: what its parent has handed to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

MEMBER, TRIAL = "--member", "--trial"
"""The options that make a process one of several, or one that tries out how many are to be: what
follows is a `Member`."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the processes of a service.

    Attributes
    ----------
    which : its place, from 0.
    n : the number of processes.
    doors : numbers of the sockets that it listens on, with the others.
    hub : number of the socket of the encoders; it closes with the parent.
    ready : number of the pipe that tells the parent that it answers.
    shared : directory of what all of them tell of themselves.
    """

    which: int
    n: int
    doors: Sequence[int]
    hub: int
    ready: int
    shared: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `write` wrote."""
        return cls(**json.loads(text))

    def write(self) -> str:
        """Serialise, for a command line."""
        return json.dumps(asdict(self))

    @property
    def numbers(self) -> list[int]:
        """All files that it is given."""
        return [*self.doors, self.hub, self.ready]

    @property
    def directory(self) -> Path:
        """`shared`, as a path."""
        return Path(self.shared)

    def open_doors(self) -> list[socket.socket]:
        """The sockets to listen on."""
        return [socket.socket(fileno=number) for number in self.doors]

    def open_hub(self) -> socket.socket:
        """The socket of the encoders. When the parent dies, this process ends in order."""
        hub = socket.socket(fileno=self.hub)
        threading.Thread(target=self._end_with, args=(hub,), daemon=True, name="parent").start()
        return hub

    def answers(self) -> None:
        """Tell the parent that this process answers."""
        with suppress(BrokenPipeError):
            os.write(self.ready, b"1")

    def _end_with(self, hub: socket.socket) -> None:
        with suppress(OSError):
            hub.recv(1)
        shutil.rmtree(self.shared, ignore_errors=True)  # as the parent does where it can
        os.kill(os.getpid(), signal.SIGTERM)

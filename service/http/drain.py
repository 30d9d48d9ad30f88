"""The drain: the time between the signal and the end, for load balancers to react."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Drain:
    """The end of a service, from the signal on.

    While it drains, ``/readyz`` says 503 and every answer closes its connection.

    Attributes
    ----------
    seconds : between the signal and the moment when connections are no longer accepted.
    begun : whether the signal has come.
    """

    seconds: float = 0.0
    begun: bool = False

    def follow_signals(self) -> None:
        """Handle SIGTERM and SIGINT before the server's own handlers.

        The first signal begins the drain, after which the server gets it. The second one ends the
        server at once. Call it on the event loop of the server, in the main thread.
        """
        loop, end = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
        if not callable(end):
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.begun:
                end(signal.SIGINT, frame)
                end(signal.SIGINT, frame)  # which uvicorn takes for "at once"
            elif self.seconds == 0:
                self.begun = True
                end(number, frame)
            else:
                self.begun = True
                loop.call_soon_threadsafe(loop.call_later, self.seconds, end, number, None)

        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) == end:
                signal.signal(number, handle)

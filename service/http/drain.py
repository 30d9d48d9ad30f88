"""The drain: a delay between the stop signal and the end of the service.

During the drain, load balancers can remove the service.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Drain:
    """The state of the drain, which begins with the first stop signal.

    During the drain, ``/readyz`` returns 503 and every answer closes its connection.

    Attributes
    ----------
    seconds : duration of the drain; after the drain, the service accepts no new connections.
    begun : whether a stop signal was received.
    """

    seconds: float = 0.0
    begun: bool = False

    def follow_signals(self) -> None:
        """Handle SIGTERM and SIGINT before the server's own handlers.

        The first signal begins the drain. At the end of the drain, the server receives the signal
        and stops. A second signal stops the server immediately. Call this method in the main
        thread, on the server's event loop.
        """
        loop, end = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
        if not callable(end):
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.begun:
                end(signal.SIGINT, frame)
                end(signal.SIGINT, frame)  # uvicorn then stops immediately
            elif self.seconds == 0:
                self.begun = True
                end(number, frame)
            else:
                self.begun = True
                loop.call_soon_threadsafe(loop.call_later, self.seconds, end, number, None)

        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) == end:
                signal.signal(number, handle)

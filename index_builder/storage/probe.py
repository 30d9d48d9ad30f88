"""A quick test of a web server; libraries would retry for a minute or longer."""

from __future__ import annotations

import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PATIENCE_S = 3.0


class Probe:
    """One request to a web server; the constructor sends it in a thread.

    Parameters
    ----------
    url : http:// or https://; proxies come from the environment.
    seconds : timeout for name lookup, connection and answer together.
    """

    def __init__(self, url: str, seconds: float = PATIENCE_S) -> None:
        self.url = url
        self._ends = time.monotonic() + seconds
        self._status: int | None = None
        # The name lookup of the system has no timeout. A hanging thread is abandoned.
        self._thread = threading.Thread(target=self._ask, args=(seconds,), daemon=True)
        self._thread.start()

    def answers(self) -> bool:
        """Wait for the answer; return True if its status is below 500."""
        self._thread.join(max(0.0, self._ends - time.monotonic()))
        return self._status is not None and self._status < 500

    def _ask(self, seconds: float) -> None:
        try:
            with urlopen(Request(self.url, method="HEAD"), timeout=seconds) as answer:  # noqa: S310 - an address of the user's own
                self._status = answer.status
        except HTTPError as error:
            self._status = error.code
        except (OSError, ValueError):
            self._status = None

"""The error rate of verdict `match`, from reviews of a random share of the answers."""

from __future__ import annotations

import hashlib
from collections import deque

from model_store.decision import Calibration, ErrorTest
from model_store.feedback import FeedbackLog
from model_store.messages import Message, message


def is_drawn(purpose: str, query_id: str, share: float) -> bool:
    """Return whether a query is of a random share: by a hash, the same on every replica."""
    drawn = hashlib.blake2b(f"{purpose}:{query_id}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") < share * 2**64


class Audit:
    """Draws matches for review, and tests the decisions on them.

    A match is drawn by a hash of its query and of the bundle, so that every replica draws the same,
    whether it was cached or not. What was drawn is kept in the feedback's file, which replicas may
    share, and with it the test survives a restart.

    Parameters
    ----------
    bundle_id : what answers.
    calibration : of the bundle; without one nothing is drawn.
    log : keeps feedback; without one nothing is drawn.
    share : of matches to draw.
    """

    def __init__(
        self, bundle_id: str, calibration: Calibration | None, log: FeedbackLog | None, share: float
    ) -> None:
        self._bundle_id = bundle_id
        max_error = None if calibration is None else calibration.max_error
        self._log = None if max_error is None else log
        self._asked: deque[tuple[str, str]] = deque()  # filled and emptied by different threads
        self._reviewed: tuple[bool, ...] = ()
        self.max_error = 0.0 if max_error is None else max_error
        self.share = share
        self.n_asked = 0
        self.test = ErrorTest(self.max_error)

    @property
    def watches(self) -> bool:
        """True if matches are drawn for review and the reviews counted."""
        return self._log is not None

    @property
    def reason(self) -> Message | None:
        """Why matches are not to be relied on; None while there is no evidence against them."""
        if not self.test.alarmed:
            return None
        return message(
            "too_many_errors",
            n=self.test.n,
            n_wrong=self.test.n_wrong,
            max_error=self.max_error,
        )

    def draws(self, query_id: str) -> bool:
        """Return whether a match of the query is drawn for review."""
        return self._log is not None and is_drawn(self._bundle_id, query_id, self.share)

    def ask(self, query_id: str, item_id: str) -> None:
        """Note that a match was drawn for review; `keep` writes it."""
        self._asked.append((query_id, item_id))

    def keep(self) -> None:
        """Write drawn matches, and read the decisions on them, from this and other processes."""
        if self._log is None:
            return
        drawn = [self._asked.popleft() for _ in range(len(self._asked))]
        if drawn:
            try:
                self._log.ask(self._bundle_id, drawn)
            except BaseException:
                self._asked.extend(drawn)
                raise
        reviews = self._log.reviews(self._bundle_id)
        self.n_asked = reviews.n_asked
        if reviews.wrong != self._reviewed:
            test = ErrorTest(self.max_error)
            for wrong in reviews.wrong:
                test.observe(wrong=wrong)
            self.test, self._reviewed = test, reviews.wrong

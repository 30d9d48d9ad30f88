"""The error rate of verdict `match`, from reviews of a random share of the answers."""

from __future__ import annotations

import hashlib
from collections import deque

from model_store.decision import Calibration, ErrorTest
from model_store.feedback import FeedbackLog

TOO_MANY_ERRORS = (
    "Of {n} matches drawn at random and reviewed {n_wrong} are wrong: more than the accepted share "
    "of {max_error:g} explains. Calibrate again, with queries like those served, or with the "
    "feedback that was given (`vouch-build calibrate --feedback`)."
)


def is_drawn(purpose: str, query_id: str, share: float) -> bool:
    """Return whether a query is of a random share: by a hash, alike on every replica."""
    drawn = hashlib.blake2b(f"{purpose}:{query_id}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") < share * 2**64


class Audit:
    """Draws matches for review, and tests what was said of them.

    A match is drawn by a hash of its query and of the bundle, so that every replica draws the same,
    whether it was cached or not. What was drawn is kept in the feedback's file, which replicas may
    share, and with it the test survives a restart.

    Parameters
    ----------
    bundle_id : what answers.
    calibration : of the bundle; without one nothing is drawn.
    log : keeps feedback; without one nothing is drawn, for nobody could answer.
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
    def reason(self) -> str | None:
        """Why matches are not to be relied on; None while there is no evidence against them."""
        if not self.test.alarmed:
            return None
        counts = {"n": self.test.n, "n_wrong": self.test.n_wrong}
        return TOO_MANY_ERRORS.format(**counts, max_error=self.max_error)

    def draws(self, query_id: str) -> bool:
        """Return whether a match of the query is drawn for review."""
        return self._log is not None and is_drawn(self._bundle_id, query_id, self.share)

    def ask(self, query_id: str, item_id: str) -> None:
        """Note that a match was drawn, and that its answer says so; `keep` writes it."""
        self._asked.append((query_id, item_id))

    def keep(self) -> None:
        """Write what was drawn, and hear what was said of it, here and in other processes."""
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

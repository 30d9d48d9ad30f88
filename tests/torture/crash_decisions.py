"""Fifty processes that keep decisions are killed: none that was acknowledged is lost.

``python -m tests.torture.crash_decisions`` starts a process that decides, takes back and retains
queries as fast as it can, some of them on leases of the review queue, and says of each decision
when it is kept; kills it at a random moment; and reads the file. It ends with an error if a
decision is missing, or was changed, or if a case does not come back once its lease has ended.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import tempfile
import time
from pathlib import Path

from model_store.feedback import (
    AnsweredQueries,
    AnsweredQuery,
    Bounds,
    Case,
    Decided,
    FeedbackLog,
    NewCase,
    Pair,
    ReviewQueue,
)

N_KILLS = 50
LONGEST_S = 2.0
LEASE_S = 1.0


def decision(number: int) -> Decided:
    """The decision that a number stands for."""
    return Decided(
        gallery="g",
        bundle="b",
        query_id=f"{number // 2:064x}",
        decision="this_item" if number % 2 else "not_this_item",
        item_id="item",
        label=None,
        reviewer=f"reviewer {number}",
        comment=None,
        pairs=(Pair("item", bool(number % 2), 1, 0.5, 0.0, "f"),),
        decided_at=float(number),
    )


def queue_at(path: Path) -> ReviewQueue:
    """The review queue in the file."""
    return ReviewQueue(path, Bounds(retention_s=1e6, most=1_000_000, most_bytes=0))


def case(number: int) -> NewCase:
    """The case of a query that is decided on next."""
    query_id = f"{number // 2:064x}"
    kept = Case(
        gallery="g",
        encoder="e",
        bundle="b",
        query_id=query_id,
        reason="ambiguous",
        drawn=False,
        verdict="ambiguous",
        found=(),
        no_match_probability=None,
        match_log_odds=0.0,
        match_fingerprint="f",
        reviewers=1,
        wanted=1,
        kept_at=time.time(),
    )
    return NewCase(kept, AnsweredQuery(query_id, b"1", b"2", b"3"), None)


def work(path: Path, start: int, acknowledged: int) -> None:
    """Decide for ever, and write each number once it is kept."""
    log, answered, queue = FeedbackLog(path), AnsweredQueries(path, 3600), queue_at(path)
    number = start
    while True:
        if number % 10 == 0:
            queue.add([case(number), case(-number)])  # one that is decided on, one that is not
            queue.lease("g", "e", f"reviewer {number}", 9, LEASE_S)
        kept = log.decide(decision(number))
        os.write(acknowledged, f"{number} {kept.number}\n".encode())
        if number % 7 == 0:
            log.undo("g", kept.number)
        if number % 5 == 0:
            answered.add("g", "e", [AnsweredQuery(f"{number:064x}", b"1", b"2", b"3")])
        number += 1


def kill_one(path: Path, start: int, seconds: float) -> list[tuple[int, int]]:
    """Fork a process, kill it after ``seconds``; what it acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            work(path, start, writing)
        finally:
            os._exit(1)
    os.close(writing)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        lines = [line.split() for line in said if line.endswith("\n")]
    return [(int(number), int(kept)) for number, kept in lines]


def main() -> None:
    """Kill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=N_KILLS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "feedback.sqlite3"
        acknowledged: dict[int, int] = {}
        for _ in range(options.kills):
            start = 1 + max(acknowledged, default=0) + 1
            seconds = generator.uniform(0.01, LONGEST_S)
            acknowledged |= dict(kill_one(path, start, seconds))
        kept = {one.number: one for one in FeedbackLog(path).decided("g")}
        for number, place in acknowledged.items():
            found = kept.get(place)
            if found is None or found.decided_at != number or found.pairs != decision(number).pairs:
                raise SystemExit(f"decision {number} was acknowledged as {place} and is lost")
        time.sleep(LEASE_S)
        queue = queue_at(path)
        waiting = len(queue.listed("g", {}, "open"))
        if waiting == 0 or len(queue.lease("g", "e", "another", waiting, LEASE_S)) != waiting:
            raise SystemExit(f"of {waiting} open cases not all came back after their leases")
        with sqlite3.connect(path) as connection:
            (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
        if sound != "ok":
            raise SystemExit(f"the file is damaged: {sound}")
        print(f"{options.kills} kills, {len(acknowledged)} decisions acknowledged, none lost")
        print(f"{waiting} cases undecided, all came back once their leases had ended")


if __name__ == "__main__":
    main()

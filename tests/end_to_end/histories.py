"""Histories of one item, and whether they are linearizable.

A history is linearizable if every operation can be thought to have happened at one moment between
its call and its answer, and every answer is what it had to be then (Herlihy & Wing, 1990). Items
are independent of each other, so that each is checked by itself, by a search through the orders
that are possible, which remembers where it has been (Wing & Gong, 1993; Lowe, 2017).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

_UNREAD = -1


class State(NamedTuple):
    """The value of an item, None where it is not there, and those that it had before swaps."""

    value: int | None = None
    before: frozenset[int | None] = frozenset()


@dataclass(frozen=True, slots=True)
class Operation:
    """What was asked of an item, and answered.

    Attributes
    ----------
    value : that was put, or found; None where the item was not there.
    existed : what a write said of the item before it; None where nobody knows.
    began, ended : seconds; one whose outcome nobody knows ends never, and may not have happened.
    late : of a read, whether a service that still serves the bundle before a swap may answer it; of
        a write, whether a swap overlaps it, so that the bundle before may store it.
    """

    kind: Literal["put", "delete", "get", "swap"]
    value: int | None
    existed: bool | None
    began: float
    ended: float
    by: str = ""
    late: bool = False

    @property
    def known(self) -> bool:
        """Whether it has certainly happened."""
        return not math.isinf(self.ended)

    def then(self, state: State) -> list[State]:
        """Return the states that can follow; none if its answer contradicts ``state``."""
        if self.kind == "get":
            seen = self.value == state.value or (self.late and self.value in state.before)
            return [state] if seen else []
        if self.kind == "swap":
            return [State(None, state.before | {state.value})]
        after = [state._replace(value=self.value)] if self._found(state.value) else []
        if self.late and any(map(self._found, state.before)):
            after.append(state._replace(before=state.before | {self.value}))
        return after

    def _found(self, value: int | None) -> bool:
        return self.existed is None or self.existed == (value is not None)


def is_linearizable(history: Sequence[Operation]) -> bool:
    """Return whether the operations on one item, absent at first, are linearizable."""
    operations = _as_far_as_it_is_seen(sorted(history, key=lambda one: one.began))
    required = sum(1 << i for i, one in enumerate(operations) if one.known)
    stack = [(0, State())]
    seen: defaultdict[tuple[int, int | None], list[tuple[int, frozenset[int | None]]]]
    seen = defaultdict(list)
    while stack:
        done, state = stack.pop()
        if done & required == required:
            return True
        following = {i: operations[i].then(state) for i in _next(operations, done)}
        possible = [i for i, states in following.items() if states]
        # One that changes nothing, and may come now, comes now: to wait with it opens no other way,
        # and of all the ways to wait there are as many as there are sets of such operations.
        reads = [i for i in possible if operations[i].kind == "get"]
        # The last comes first: those that have certainly happened.
        for i in reads[:1] or sorted(possible, key=lambda i: operations[i].known):
            reached = done | 1 << i
            spent = reached & ~required
            for after in following[i]:
                # Where fewer of those are used up that need not have happened, and more may be
                # answered late, whatever can follow here can follow as well.
                alike = seen[reached & required, after.value]
                if not any(one & ~spent == 0 and before >= after.before for one, before in alike):
                    alike.append((spent, after.before))
                    stack.append((reached, after))
    return False


def _as_far_as_it_is_seen(operations: Sequence[Operation]) -> list[Operation]:
    """Give one value to all that were put and never read: nobody could tell them apart."""
    read = {one.value for one in operations if one.kind == "get"}
    return [
        replace(one, value=_UNREAD) if one.kind == "put" and one.value not in read else one
        for one in operations
    ]


def _next(operations: Sequence[Operation], done: int) -> list[int]:
    """Which of those that are left may come next: who began before any of the others ended."""
    first = ((done + 1) & ~done).bit_length() - 1  # all before it are done
    found, earliest_end = [], math.inf
    for i in range(first, len(operations)):
        if operations[i].began > earliest_end:
            break
        if not done >> i & 1:
            found.append(i)
            earliest_end = min(earliest_end, operations[i].ended)
    return found


def first_violation(history: Sequence[Operation]) -> Operation | None:
    """Return the operation whose answer no order explains; None where the history is linearizable.

    It is the last of the shortest beginning that is not linearizable, by the times of answers.
    """
    if is_linearizable(history):
        return None
    answered = sorted((one for one in history if one.known), key=lambda one: one.ended)
    low, high = 1, len(answered)
    while low < high:
        middle = (low + high) // 2
        if is_linearizable(_until(history, answered[middle - 1].ended)):
            low = middle + 1
        else:
            high = middle
    return answered[low - 1]


def _until(history: Sequence[Operation], moment: float) -> list[Operation]:
    """The history as it was known at a moment: what was under way then may have happened."""
    return [
        one if one.ended <= moment else replace(one, existed=None, ended=math.inf)
        for one in history
        if one.began <= moment and (one.ended <= moment or one.kind != "get")
    ]

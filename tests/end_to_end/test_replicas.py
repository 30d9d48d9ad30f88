"""Two services on one gallery answer as one would; and the checker that says so can say no."""

from __future__ import annotations

import math
import shutil
from itertools import chain, combinations, permutations
from pathlib import Path

import numpy as np
import pytest

from model_store.bundles.directory import activate
from tests.end_to_end.histories import Operation, State, first_violation, is_linearizable
from tests.end_to_end.replicas import Replicas


def put(
    value: int, began: float, ended: float, existed: bool | None = None, *, late: bool = False
) -> Operation:
    return Operation("put", value, existed, began, ended, late=late)


def delete(began: float, ended: float, existed: bool | None = True) -> Operation:
    return Operation("delete", None, existed, began, ended)


def get(value: int | None, began: float, ended: float, *, late: bool = False) -> Operation:
    return Operation("get", value, None, began, ended, late=late)


def swap(began: float, ended: float) -> Operation:
    return Operation("swap", None, None, began, ended)


class TestTheChecker:
    @pytest.mark.parametrize(
        "history",
        [
            [],
            [get(None, 0, 1), put(1, 2, 3, existed=False), get(1, 4, 5), delete(6, 7)],
            [put(1, 0, 5), get(None, 1, 2), get(1, 3, 4)],  # it happened between the two
            [put(1, 0, math.inf), get(None, 1, 2), get(1, 3, 4)],  # nobody knows whether
            [put(1, 0, math.inf), get(None, 1, 2), get(None, 3, 4)],
            [put(1, 0, 9), put(2, 0, 9), get(2, 1, 2), get(1, 3, 4)],
            [put(1, 0, 1), swap(2, 3), get(None, 4, 5), put(2, 6, 7, existed=False)],
            [put(1, 0, 1), swap(2, 3), get(None, 4, 5), get(1, 6, 7, late=True)],
            [put(1, 0, 1), put(2, 2, 9), swap(3, 4), get(2, 5, 6)],
            # Kept in the bundle before, after the swap and after a late read.
            [
                put(1, 0, 1),
                put(2, 2, 9, existed=True, late=True),
                swap(3, 4),
                get(1, 5, 6, late=True),
                get(None, 10, 11),
                get(2, 10, 11, late=True),
            ],
        ],
    )
    def test_what_one_gallery_could_have_answered(self, history: list[Operation]) -> None:
        assert is_linearizable(history)
        assert first_violation(history) is None

    @pytest.mark.parametrize(
        ("history", "wrong"),
        [
            ([put(1, 0, 1), get(None, 2, 3)], 1),  # stale
            ([put(1, 0, 1), delete(2, 3), get(1, 4, 5)], 2),  # deleted, and back
            ([put(1, 0, 5), get(1, 1, 2), get(None, 3, 4)], 2),  # seen, then not
            ([put(1, 0, 1), put(2, 2, 3, existed=False)], 1),
            ([delete(0, 1)], 0),  # of what was never there
            ([get(7, 0, 1)], 0),
            ([put(1, 0, math.inf), get(1, 1, 2), get(None, 3, 4)], 2),
            ([put(1, 0, 1), swap(2, 3), get(1, 4, 5)], 2),
            ([put(1, 0, 1), swap(2, 3), put(2, 4, 5, existed=True)], 2),
            ([put(1, 0, 1), put(2, 2, 3), swap(4, 5), get(1, 6, 7, late=True)], 3),
            ([put(1, 0, 1), put(2, 2, 6, existed=True), swap(3, 4), get(1, 7, 8, late=True)], 3),
        ],
    )
    def test_what_none_could_have(self, history: list[Operation], wrong: int) -> None:
        assert first_violation(history) == history[wrong]

    def test_it_agrees_with_trying_all_orders(self) -> None:
        rng, n_linearizable = np.random.default_rng(0), 0
        for _ in range(400):
            history = [_random(rng, value) for value in range(1, 6)]
            n_linearizable += _by_trying(history)
            assert is_linearizable(history) == _by_trying(history), history
        assert 40 < n_linearizable < 360

    def test_what_many_read_at_once_is_judged_in_a_moment(self) -> None:
        reads = [get(None, place / 100, 9) for place in range(40)]  # 2⁴⁰ sets of them
        assert is_linearizable([put(1, 0, 9), *reads])
        assert not is_linearizable([put(1, 0, 9), *reads, get(7, 0, 9)])

    def test_so_is_what_may_have_been_written_or_not(self) -> None:
        writes = [put(place, place, math.inf) for place in range(1, 40)]
        known = [put(100 + place, place, place + 0.5) for place in range(1, 40)]
        assert is_linearizable([*writes, *known, get(20, 50, 51), get(39, 52, 53)])
        assert not is_linearizable([*writes, *known, get(20, 15, 16)])  # before it was asked for


def _random(rng: np.random.Generator, value: int) -> Operation:
    began = float(rng.uniform(0, 8))
    ended = began + float(rng.uniform(0.5, 6))
    kind = rng.integers(8)
    if kind < 6 and rng.uniform() < 0.25:
        ended = math.inf  # nobody knows whether it happened
    if kind < 3:
        return put(value, began, ended, late=bool(rng.integers(2)))
    if kind < 5:
        return delete(began, ended, existed=None)
    if kind == 5:
        return swap(began, ended)
    return get([None, 1, 2, 3][rng.integers(4)], began, ended, late=bool(rng.integers(2)))


def _by_trying(history: list[Operation]) -> bool:
    """Whether any order of those that happened keeps to their times and explains their answers."""
    unknown = [one for one in history if not one.known]
    chosen = chain.from_iterable(combinations(unknown, n) for n in range(len(unknown) + 1))
    happened = [[one for one in history if one.known or one in some] for some in chosen]
    for order in chain.from_iterable(map(permutations, happened)):
        states = {State()}
        for place, one in enumerate(order):
            in_time = all(later.ended >= one.began for later in order[place:])
            states = {after for state in states if in_time for after in one.then(state)}
        if states:
            return True
    return False


def test_two_services_answer_as_one(digits_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    shutil.copytree(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    replicas = Replicas(root, digits_bundle, tmp_path / "service.log", seed=0)

    def enough() -> bool:
        kinds = list(replicas.counts)
        has_swapped = any(kind.startswith("swap by") for kind in kinds)
        return replicas.n_operations > 50 and "compact 200" in kinds and has_swapped

    replicas.run(8, compact_every_s=1.5, kill_every_s=5, swap_every_s=2.7, enough=enough)
    assert replicas.violations() == []
    assert enough()

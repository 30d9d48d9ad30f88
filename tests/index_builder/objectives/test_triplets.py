from __future__ import annotations

from typing import get_args

import pytest
import torch

from index_builder.objectives.distances import MINING_MARGIN, Mining, mine_triplets

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
DIRECTIONS = torch.nn.functional.normalize(torch.randn(8, 3, generator=GENERATOR))


def mined(mining: Mining, n_most: int = 10**6, seed: int = 0) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    rows = mine_triplets(DIRECTIONS, LABELS, mining, n_most, generator)
    return list(zip(*(part.tolist() for part in rows), strict=True))


def wanted(mining: Mining) -> set[tuple[int, int, int]]:
    """By three loops."""
    triplets = set()
    for a in range(8):
        for p in range(8):
            for n in range(8):
                if a == p or LABELS[a] != LABELS[p] or LABELS[a] == LABELS[n]:
                    continue
                lead = float((DIRECTIONS[a] - DIRECTIONS[n]).norm())
                lead -= float((DIRECTIONS[a] - DIRECTIONS[p]).norm())
                low, high = {
                    "all": (-10.0, MINING_MARGIN),
                    "semihard": (0.0, MINING_MARGIN),
                    "hard": (-10.0, 0.0),
                }[mining]
                if low < lead < high:
                    triplets.add((a, p, n))
    return triplets


@pytest.mark.parametrize("mining", get_args(Mining))
def test_triplets_are_those_of_three_loops(mining: Mining) -> None:
    found = mined(mining)
    assert len(found) == len(set(found)) > 0
    assert set(found) == wanted(mining)


def test_of_too_many_some_are_drawn() -> None:
    few = mined("all", n_most=5)
    assert len(set(few)) == 5
    assert set(few) < wanted("all")
    assert few == mined("all", n_most=5)
    assert few != mined("all", n_most=5, seed=1)


def test_where_nothing_is_left_to_learn_there_are_none() -> None:
    perfect = torch.eye(4)[LABELS]
    rows = mine_triplets(perfect, LABELS, "all", 10, GENERATOR)
    assert [len(part) for part in rows] == [0, 0, 0]

"""``make mutants``: small faults put into a copy of the code, one at a time; do the tests see them?

A mutant is one change of a kind that goes wrong in practice: a comparison that is off by one, an
argument that is not passed on, a statement that is missing. They are drawn by a seed: from each
room as many, and from each kind in a room. The tests of the room that come by are run on each, in
a fork where that can show it. A mutant is killed by the first that fails, or by taking longer than
the limit. Tests that fail without a mutant are left out.

    python -m tests.mutants --seed 1 --number 40 --rooms decision access
    python -m tests.mutants --number 1000 --rooms access --kinds comparison guard

Strings, annotations, decorators, the words of errors and logging are left alone. A mutant that
changes nothing anybody could see is entered in `equivalent.toml` with the reason; those are
counted apart. Each result is kept as it comes, and runs add up: what is in the file is not tried
again, unless `--again` asks for what has survived, with the code and the tests as they are now.

Before the first mutant of a room, its tests run once to record their lines and times. The records
are kept beside the results; only files of tests that have changed run again.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

from tests.mutants.drawing import Mutant, draw, equivalents, found_again, key_of
from tests.mutants.results import Results
from tests.mutants.rooms import ROOMS, ROOT
from tests.mutants.trees import Tree, copy_of_the_tree


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Do the tests see small faults?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=40, help="of mutants")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--kinds", nargs="+", default=(), help="all of them unless some are named")
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        help="seconds for tests that take less than a fifth of it",
    )
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument(
        "--quick",
        type=float,
        default=math.inf,
        help="only tests that come by the mutant and take so many seconds; then ask --again",
    )
    parser.add_argument("--again", action="store_true", help="try only what has survived so far")
    return parser.parse_args()


def main() -> None:
    """Draw, try out, and say what has survived."""
    asked = arguments()
    results, known = Results(asked.results), equivalents()
    if asked.again:
        chosen = [one for one in found_again(results.survivors()) if one.room in asked.rooms]
    else:
        drawn = draw(asked.rooms, asked.number, asked.seed, asked.kinds)
        chosen = [one for one in drawn if key_of(asdict(one)) not in results.last]
    try_out([one for one in chosen if key_of(asdict(one)) not in known], asked, results)
    for one in chosen:
        if reason := known.get(key_of(asdict(one))):
            results.append(replace(one, outcome="equivalent", by=reason))
    print(results.summary(known))


def try_out(mutants: list[Mutant], asked: argparse.Namespace, results: Results) -> None:
    """Try mutants room by room, and keep and print what becomes of each."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(
            copy_of_the_tree(Path(folder)),
            asked.limit,
            asked.results.parent / "rehearsals",
            asked.quick,
        )
        for room, there in groupby(mutants, lambda one: one.room):
            for one in tree.try_out(ROOMS[room], list(there)):
                print(one, flush=True)
                results.append(one)


if __name__ == "__main__":
    main()

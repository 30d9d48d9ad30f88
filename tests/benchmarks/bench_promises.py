"""How often a guarantee is broken, in worlds whose truth is known.

Every world is drawn again for each repetition, or divided again where it is real: a gallery, its
calibration queries, and test queries of which some show labels that nothing fitted has seen. A
synthetic world has ten test queries for each calibration query, gallery images that are calibration
queries included: with two for each, chance of the test alone missed a coverage in nine of forty
calibrations, of which one missed it among 6,000 queries. Real worlds have few test queries, so
there a promise is broken where these show it at the 5 % level. Writes
``build/bench-promises.json``; the numbers of the worst world stand at its top. Real worlds are read
from VOUCH_DATA_DIR; their encoders, and those of `bench_outliers`, are built once and kept in
build/, which takes the better part of an hour.

What each task has found is kept beside the report; with ``--resume`` it is not measured again.

    python -m tests.benchmarks.bench_promises [--quick] [--repetitions N] [--only NAME] [--resume]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.benchmarks import bench_outliers
from tests.benchmarks.measured import record_table
from tests.benchmarks.outlier_worlds import WORLDS as OUTLIER_WORLDS
from tests.benchmarks.preconditions import data_dir
from tests.benchmarks.promises.catalogue import LARGE, ORDINARY, WORLDS, spec_of
from tests.benchmarks.promises.deleted import measure_deleted
from tests.benchmarks.promises.drift import CHANGES, SHARES, alarms
from tests.benchmarks.promises.filtered import measure_filters
from tests.benchmarks.promises.measures import Record, means, measure
from tests.benchmarks.promises.oracles import ORACLES
from tests.benchmarks.promises.planner import compare_divisions, division_of, plan
from tests.benchmarks.promises.real import PLANNED, REAL, embed_all, real_world
from tests.benchmarks.promises.reviews import REVIEWED, measure_reviews
from tests.benchmarks.promises.streams import measure_streams
from tests.benchmarks.promises.summary import COLUMNS, rows, sizes_of, summarise, table_of_worlds
from tests.benchmarks.promises.worlds import make_world

REPORT = Path("build/bench-promises.json")
RECORDS = Path("build/bench-promises-records.jsonl")

REPETITIONS, REAL_SEEDS, FILTER_SEEDS, PLANNER_SEEDS = 100, 20, 5, 10
DRIFT_SEEDS, DRIFT_CALIBRATIONS = 200, (50, 100, 300)
AT_ONCE = 20
"""Repetitions of drift in one task."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For the processes that measure: each has a core, where threads wait for each other."""

Task = tuple[str, str, int]
"""What is measured, where, and with which seed."""


def run(task: Task) -> Record | list[Record]:
    """Measure once, in a process of its own."""
    kind, name, seed = task
    if kind == "drift":
        change, n = name.rsplit(" ", 1)
        return [alarms(change, int(n), one) for one in range(seed, seed + AT_ONCE)]
    if kind == "outliers":
        return bench_outliers.measure([name], data_dir())
    with TemporaryDirectory() as place:
        directory = Path(place) / "gallery"
        directory.mkdir()
        if name in REAL:
            division = division_of(seed) if kind == "planner" else seed
            world = real_world(name, division, directory)
        else:
            world = make_world(spec_of(name), seed, directory)
        if kind == "deleted":
            return measure_deleted(world, seed, directory)
        if kind == "streams":
            return measure_streams(world, seed, directory)
        measures = {
            "filters": measure_filters,
            "planner": plan,
            "reviews": measure_reviews,
            "world": measure,
        }
        return measures[kind](world, seed)


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    """All that is to be measured; what takes longest comes first."""
    for seed in range(options.filter_seeds):
        yield "filters", ORDINARY, seed
        yield "reviews", LARGE, seed
        yield "streams", ORDINARY, seed
    for seed in range(options.planner_seeds):
        yield "deleted", ORDINARY, seed
    if "VOUCH_DATA_DIR" in os.environ:
        for name in () if options.quick else OUTLIER_WORLDS:
            yield "outliers", name, 0
        for kind, names, n in (
            ("world", REAL, options.real_seeds),
            ("reviews", REVIEWED, options.filter_seeds),
            ("planner", PLANNED, options.planner_seeds),
        ):
            yield from ((kind, name, seed) for seed, name in product(range(n), names))
    for seed in range(options.first, options.repetitions):
        for spec in WORLDS:
            yield "world", spec.name, seed
    for change in (*SHARES, *CHANGES):
        for n in DRIFT_CALIBRATIONS:
            for seed in range(0, options.drift_seeds, AT_ONCE):
                yield "drift", f"{change} {n}", seed


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the repetitions, and no outlier regret"
    )
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of synthetic worlds")
    parser.add_argument("--first", type=int, default=0, help="of these, the first to make")
    parser.add_argument("--only", help="worlds and parts whose names hold this")
    parser.add_argument("--real-seeds", type=int, help="divisions of each real set")
    parser.add_argument("--planner-seeds", type=int, help="orders of queries that are planned for")
    parser.add_argument("--resume", action="store_true", help="keep what was measured before")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.quick:
        options.repetitions = min(options.repetitions, REPETITIONS // 10)
    options.real_seeds = options.real_seeds or (3 if options.quick else REAL_SEEDS)
    options.planner_seeds = options.planner_seeds or (3 if options.quick else PLANNER_SEEDS)
    options.filter_seeds = 1 if options.quick else FILTER_SEEDS
    options.drift_seeds = 2 * AT_ONCE if options.quick else DRIFT_SEEDS
    chosen = [
        task
        for task in tasks(options)
        if options.only is None or options.only in task[0] + " " + task[1]
    ]
    if "VOUCH_DATA_DIR" not in os.environ:
        print("Without VOUCH_DATA_DIR there are no real worlds.")
    REPORT.parent.mkdir(exist_ok=True)
    if not options.resume:
        RECORDS.unlink(missing_ok=True)
    known = kept()
    chosen = [task for task in chosen if task not in known]
    embed_all(sorted({name for _, name, _ in chosen} & REAL.keys()))
    for records in measured(chosen, known, options.processes):
        numbers, report = reduced(records)
        REPORT.write_text(json.dumps({**numbers, **report}, indent=1) + "\n", encoding="utf-8")
    print("\n" + table_of_worlds(report["worlds"]) + "\n")
    print(*map(" | ".join, rows(numbers)), sep="\n")
    about = sizes_of(report["worlds"], frozenset(REAL))
    record_table("promises", COLUMNS, rows(numbers), {"__doc__": __doc__}, about=about)


def kept() -> dict[Task, list[Record]]:
    """Return what earlier runs have recorded."""
    if not RECORDS.exists():
        return {}
    lines = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    return {(kind, name, seed): found for kind, name, seed, found in lines}


def keep(task: Task, found: list[Record]) -> None:
    """Write what a task has recorded."""
    line = json.dumps([*task, found], default=lambda value: value.item())  # NumPy's own bools
    with RECORDS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def measured(
    chosen: list[Task], known: dict[Task, list[Record]], processes: int
) -> Iterator[dict[tuple[str, str], list[Record]]]:
    """Run the tasks, and yield every minute what has been recorded so far."""
    records: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for (kind, name, _), before in known.items():
        records[kind, name] += before
    if not chosen:
        yield records
    started = told = time.monotonic()
    os.environ.update(ONE_THREAD)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run, task): task for task in chosen}
        for done, future in enumerate(as_completed(running), start=1):
            kind, name, _ = running[future]
            found = future.result()
            found = found if isinstance(found, list) else [found]
            keep(running[future], found)
            records[kind, name] += found
            if time.monotonic() - told > 60 or done == len(chosen):
                told = time.monotonic()
                print(f"{done} of {len(chosen)} after {told - started:.0f} s", flush=True)
                yield records


def reduced(records: dict[tuple[str, str], list[Record]]) -> tuple[Record, dict[str, Any]]:
    """Return the numbers of the table, and the details behind them."""
    of_worlds = {name: found for (kind, name), found in records.items() if kind == "world"}
    order = [name for name in (*REAL, *(spec.name for spec in WORLDS)) if name in of_worlds]
    numbers, worlds = summarise(
        {name: of_worlds[name] for name in order}, frozenset(REAL), frozenset(ORACLES)
    )
    filters = {name: means(found) for (kind, name), found in records.items() if kind == "filters"}
    if filters:
        numbers["ece_filters"] = max(one["ece"] for one in filters.values())
        numbers["filters_time_ratio"] = max(one["time_over_unfiltered"] for one in filters.values())
    reviews = {
        name: means(done)
        for (kind, name), found in records.items()
        if kind == "reviews" and (done := [one for one in found if "refused" not in one])
    }
    if reviews:
        numbers["reviews_ratio"] = max(one["ratio"] for one in reviews.values())
        numbers["reviews_interval_missed"] = max(one["missed"] for one in reviews.values())
    deleted = {name: means(found) for (kind, name), found in records.items() if kind == "deleted"}
    if deleted:
        found = [one for (kind, _), some in records.items() if kind == "deleted" for one in some]
        states = [[one["deleted"], one.get("refit", one["deleted"])] for one in found]
        broken = [any(one["guaranteed"] and one["exceeded"] for one in some) for some in states]
        numbers["max_error_exceeded_deleted"] = float(np.mean(broken))
        for name in ("as_before", "told"):
            exceeded = float(np.mean([last[f"exceeded_{name}"] for _, last in states]))
            numbers[f"max_error_exceeded_deleted_{name}"] = exceeded
    streams = {name: means(found) for (kind, name), found in records.items() if kind == "streams"}
    if streams:
        numbers["others_lost_match"] = max(one["lost"] for one in streams.values())
        numbers["answers_changed"] = max(one["changed"] for one in streams.values())
    drift: dict[str, Record] = {}
    for (kind, name), found in records.items():
        if kind == "drift":
            after = [one["after"] for one in found if one["found"]]
            drift[name] = {
                "repetitions": len(found),
                "found": len(after) / len(found),
                "median_delay": float(np.median(after)) if after else None,
            }
    for number, case in (
        ("drift_spread_found", "spread 100"),
        ("drift_spread_found_300", "spread 300"),
    ):
        if case in drift:
            numbers[number] = drift[case]["found"]
    calm = [
        np.mean([one["found"] for name, one in drift.items() if name.rsplit(" ", 1)[0] == case])
        for case in SHARES
        if any(name.rsplit(" ", 1)[0] == case for name in drift)
    ]
    if calm:  # of each number of calibration queries there are as many
        numbers["drift_false_alarms"] = float(max(calm))
    regrets = {name: found for (kind, name), (found, *_) in records.items() if kind == "outliers"}
    if regrets:
        numbers["outlier_regret"] = max(one["outlier_regret"] for one in regrets.values())
    planner = {
        name: compare_divisions(found)
        for (kind, name), found in records.items()
        if kind == "planner"
    }
    ratios = [one["ratio"] for one in planner.values() if one["ratio"] is not None]
    if ratios:
        numbers["planner_ratio_lowest"] = min(ratios)
        numbers["planner_ratio_highest"] = max(ratios)
    return numbers, {
        "worlds": worlds,
        "filters": filters,
        "reviews": reviews,
        "deleted": deleted,
        "streams": streams,
        "drift": drift,
        "planner": planner,
        "outliers": regrets,
    }


if __name__ == "__main__":
    main()

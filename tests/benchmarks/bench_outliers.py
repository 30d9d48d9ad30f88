"""How far the outlier score stays behind the best of its signals, over encoders and outliers.

Regret is the AUROC of the best single signal, known only in hindsight, minus that of the fused
score. The fusion is fitted to one half of a gallery's queries and measured on the other, five
times: with corrupted queries alone to learn from, and with them crops of a photograph,
scikit-learn's digits, or images of withheld labels. A kind that was a lesson is not tested, but for
corrupted queries, of which the fusion has seen others. What each signal adds is the AUROC of the
fused score minus that of a fusion fitted without it. Reads VOUCH_DATA_DIR; ten minutes on two
cores, most of it for the encoders, which are made once.

    python -m tests.benchmarks.bench_outliers [WORLD ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import cross_fitted_scores, fit_fusion
from index_builder.metrics import auroc
from model_store.decision import OUTLIER_SIGNALS
from tests.benchmarks.outlier_worlds import KEPT, WORLDS, World, world
from tests.benchmarks.preconditions import data_dir

SEEDS = 5
ALPHA = 0.05

LESSONS: dict[str, str] = {"photographs": "photographs", "digits": "mnist", "near": "near"}
"""What is learned from beside corrupted queries, and the tested kind that is too much like it."""

Floats = NDArray[np.float64]


def area(aliens: Floats, ordinary: Floats) -> float:
    """AUROC of two samples that are there."""
    found = auroc(aliens, ordinary)
    assert found is not None
    return found


def regrets(seen: World, lesson: str | None) -> dict[str, dict[str, float]]:
    """AUROC of score and signals for each kind of outliers, mean over the splits."""
    rows: dict[str, list[list[float]]] = {}
    for seed in range(SEEDS):
        taught, asked = halves(seen, seed)
        score = fit_fusion(seen.ordinary[taught], kinds(seen, taught, lesson))
        ordinary = seen.ordinary[asked]
        for kind, aliens in {"corrupted": seen.spoilt[asked], **seen.others}.items():
            if lesson is not None and kind == LESSONS[lesson]:
                continue
            found = [area(score(aliens), score(ordinary))]
            found += [area(aliens[:, s], ordinary[:, s]) for s in range(len(OUTLIER_SIGNALS))]
            rows.setdefault(kind, []).append(found)
    table = {}
    for kind, areas in rows.items():
        fused, *alone = np.mean(areas, axis=0).tolist()
        table[kind] = {
            "fused": fused,
            **dict(zip(OUTLIER_SIGNALS, alone, strict=True)),
            "regret": max(alone) - fused,
        }
    return table


def added(seen: World, lesson: str | None) -> dict[str, dict[str, float]]:
    """By how much each signal raises the AUROC of the score, by kind, mean over the splits."""
    everything = np.arange(len(OUTLIER_SIGNALS))
    whole = [_areas(seen, lesson, seed, everything) for seed in range(SEEDS)]
    gains = {}
    for left_out, name in enumerate(OUTLIER_SIGNALS):
        kept = np.delete(everything, left_out)
        rest = [_areas(seen, lesson, seed, kept) for seed in range(SEEDS)]
        gains[name] = {
            kind: float(
                np.mean([of[kind] - other[kind] for of, other in zip(whole, rest, strict=True)])
            )
            for kind in whole[0]
        }
    return gains


def _areas(
    seen: World, lesson: str | None, seed: int, columns: NDArray[np.int64]
) -> dict[str, float]:
    """AUROC, for each kind of outliers, of a fusion of some of the signals."""
    taught, asked = halves(seen, seed)
    lessons = [signals[:, columns] for signals in kinds(seen, taught, lesson)]
    score = fit_fusion(seen.ordinary[taught][:, columns], lessons)
    ordinary = score(seen.ordinary[asked][:, columns])
    return {
        kind: area(score(aliens[:, columns]), ordinary)
        for kind, aliens in {"corrupted": seen.spoilt[asked], **seen.others}.items()
        if lesson is None or kind != LESSONS[lesson]
    }


def false_alarms(seen: World, lesson: str | None) -> float:
    """Share of ordinary queries with a conformal p-value of at most `ALPHA`, mean over splits."""
    shares = []
    for seed in range(SEEDS):
        taught, asked = halves(seen, seed)
        others = kinds(seen, taught, lesson)
        ordinary, n = seen.ordinary[taught], len(taught)
        n_more = sum(map(len, others[1:]))
        sources = np.r_[np.arange(n), np.arange(n), n + np.arange(n_more)]
        calibrated = np.sort(cross_fitted_scores(ordinary, others, sources, seed)[0])
        served = fit_fusion(ordinary, others)(seen.ordinary[asked])
        p_values = (1 + n - np.searchsorted(calibrated, served)) / (n + 1)
        shares.append(float((p_values <= ALPHA).mean()))
    return float(np.mean(shares))


def halves(seen: World, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Queries to calibrate with, and to ask."""
    order = np.random.default_rng(seed).permutation(len(seen.ordinary))
    return order[: len(order) // 2], order[len(order) // 2 :]


def kinds(seen: World, taught: NDArray[np.int64], lesson: str | None) -> list[Floats]:
    """Outliers that the fusion learns from."""
    return [seen.spoilt[taught], *([] if lesson is None else [seen.lessons[lesson]])]


def measure(names: Sequence[str], data: Path) -> dict[str, Any]:
    """All pairs, and the worst regret among them."""
    pairs: dict[str, dict[str, float]] = {}
    alarms: dict[str, float] = {}
    gains: dict[str, dict[str, float]] = {}
    for name in names:
        seen = world(name, data)
        for lesson in (None, *(kind for kind in LESSONS if kind in seen.lessons)):
            taught = f"{name}, taught by {lesson or 'corrupted queries alone'}"
            alarms[taught] = false_alarms(seen, lesson)
            for kind, row in regrets(seen, lesson).items():
                pairs[f"{taught}: {kind}"] = row
            for signal, of_kind in added(seen, lesson).items():
                for kind, gain in of_kind.items():
                    gains.setdefault(signal, {})[f"{taught}: {kind}"] = gain
    worst = max(row["regret"] for row in pairs.values())
    return {"outlier_regret": worst, "pairs": pairs, "false_alarms": alarms, "added": gains}


def main() -> None:
    """Print a row for each pair."""
    report = measure(sys.argv[1:] or list(WORLDS), data_dir())
    print("| encoder and lesson: outliers | fused | " + " | ".join(OUTLIER_SIGNALS) + " | regret |")
    print("|---|" + "---:|" * (len(OUTLIER_SIGNALS) + 2))
    for pair, row in report["pairs"].items():
        print(f"| {pair} | " + " | ".join(f"{value:.3f}" for value in row.values()) + " |")
    for signal, gains in report["added"].items():
        values = list(gains.values())
        print(
            f"{signal} adds {np.mean(values):+.4f} on average, "
            f"{min(values):+.3f} to {max(values):+.3f}"
        )
    for taught, share in report["false_alarms"].items():
        print(f"false alarms at {ALPHA}: {share:.3f} ({taught})")
    print(f"outlier_regret: {report['outlier_regret']:.3f}")
    (KEPT / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

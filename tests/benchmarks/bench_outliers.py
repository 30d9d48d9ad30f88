"""How far the outlier score stays behind the best of its signals, over encoders and outliers.

Regret is the AUROC of the best single signal, known only in hindsight, minus that of the score,
which is their sum. Half of a gallery's queries calibrate the p-value, the other half are asked,
five times. Reads VOUCH_DATA_DIR; ten minutes on two cores, most of it for the encoders, which are
made once.

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

from index_builder.metrics import auroc
from model_store.decision import OUTLIER_SIGNALS
from tests.benchmarks.outlier_worlds import KEPT, WORLDS, World, world
from tests.benchmarks.preconditions import data_dir

SEEDS = 5
ALPHA = 0.05

Floats = NDArray[np.float64]


def area(aliens: Floats, ordinary: Floats) -> float:
    """AUROC of two samples that are there."""
    found = auroc(aliens, ordinary)
    assert found is not None
    return found


def regrets(seen: World) -> dict[str, dict[str, float]]:
    """AUROC of score and signals for each kind of outliers."""
    table = {}
    for kind, aliens in {"corrupted": seen.spoilt, **seen.others}.items():
        score = area(aliens.sum(axis=1), seen.ordinary.sum(axis=1))
        alone = [area(aliens[:, s], seen.ordinary[:, s]) for s in range(len(OUTLIER_SIGNALS))]
        table[kind] = {
            "score": score,
            **dict(zip(OUTLIER_SIGNALS, alone, strict=True)),
            "regret": max(alone) - score,
        }
    return table


def false_alarms(seen: World) -> float:
    """Share of ordinary queries with a conformal p-value of at most `ALPHA`, mean over halves."""
    shares, scores = [], seen.ordinary.sum(axis=1)
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(scores))
        calibrated, asked = np.sort(scores[order[::2]]), scores[order[1::2]]
        n = len(calibrated)
        p_values = (1 + n - np.searchsorted(calibrated, asked)) / (n + 1)
        shares.append(float((p_values <= ALPHA).mean()))
    return float(np.mean(shares))


def measure(names: Sequence[str], data: Path) -> dict[str, Any]:
    """All pairs, and the worst regret among them."""
    pairs: dict[str, dict[str, float]] = {}
    alarms: dict[str, float] = {}
    for name in names:
        seen = world(name, data)
        alarms[name] = false_alarms(seen)
        pairs |= {f"{name}: {kind}": row for kind, row in regrets(seen).items()}
    worst = max(row["regret"] for row in pairs.values())
    return {"outlier_regret": worst, "pairs": pairs, "false_alarms": alarms}


def main() -> None:
    """Print a row for each pair."""
    report = measure(sys.argv[1:] or list(WORLDS), data_dir())
    print("| encoder: outliers | score | " + " | ".join(OUTLIER_SIGNALS) + " | regret |")
    print("|---|" + "---:|" * (len(OUTLIER_SIGNALS) + 2))
    for pair, row in report["pairs"].items():
        print(f"| {pair} | " + " | ".join(f"{value:.3f}" for value in row.values()) + " |")
    for name, share in report["false_alarms"].items():
        print(f"false alarms at {ALPHA}: {share:.3f} ({name})")
    print(f"outlier_regret: {report['outlier_regret']:.3f}")
    (KEPT / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

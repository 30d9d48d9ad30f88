"""The exact `fixed` posterior of all of Fashion-MNIST against one epoch of training.

60,000 images are 3.6 billion pairs. Both run as `vouch-build` runs them, in one process, one after
the other; the fit computes the features of all images as well. Compared is the time of processors:
on a machine that does other work besides, the clock tells what else was done.

    python -m tests.benchmarks.bench_fit
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from index_builder.configuration.build import BuildConfig, load_config
from index_builder.datasets import load_splits
from index_builder.pipeline.run import TRAINING_REPORT, Run
from index_builder.pipeline.steps import fit_step, train_step


def one_epoch() -> BuildConfig:
    """The built-in configuration with a single epoch, on every image."""
    config = load_config("fashion-mnist")
    dataset = config.dataset.model_copy(update={"validation_share": 0.0})
    training = config.training.model_copy(update={"epochs": 1})
    return config.model_copy(update={"dataset": dataset, "training": training})


def measure(directory: Path) -> dict[str, float]:
    """Train and fit in ``directory``; seconds of the fit over those of the epoch."""
    config, run = one_epoch(), Run(directory)
    splits = load_splits(config)
    started = time.process_time()
    train_step(config, run, splits)
    trained = time.process_time()
    fit_step(config, run, splits)
    fitted = time.process_time()
    training = run.read_json(TRAINING_REPORT)
    # Of the step, which prepares the images as well, as much as the epoch took by the clock.
    of_epoch = training["epochs"][0]["seconds"] / training["seconds"]
    return {"exact_fit_over_epoch": (fitted - trained) / ((trained - started) * of_epoch)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(Path(*sys.argv[1:]) if sys.argv[1:] else Path(scratch)), indent=2))

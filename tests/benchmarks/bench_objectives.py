"""A training step of every objective against one of the contrastive loss, on the same images.

120 images a batch through the papers' small network, whose step this is a share of. The time of
processors is compared, the least of three passes: other work on the machine is not ours.

    python -m tests.benchmarks.bench_objectives
"""

from __future__ import annotations

import json
import time

import torch

from index_builder.configuration.encoder import NetworkConfig, TrainingConfig
from index_builder.configuration.objective import OF_VIEWS
from index_builder.datasets.small_images import digits
from index_builder.networks import build_encoder
from index_builder.objectives import objective_of
from index_builder.objectives.registry import OBJECTIVES
from index_builder.progress import console
from index_builder.training import batches_of, feature_source, train

N_IMAGES = 1_200
BASELINE = "contrastive"
REPEATS = 3


def measure() -> dict[str, float]:
    """Return a step's time over that of the contrastive loss, of each objective and at most."""
    images = digits().at(range(N_IMAGES))
    labels = torch.from_numpy(images.label_codes())
    best = dict.fromkeys(OBJECTIVES, float("inf"))
    console.quiet = True
    for _ in range(REPEATS):
        for kind in OBJECTIVES:
            config = TrainingConfig.model_validate(
                {"objective": kind, "epochs": 1, "images_per_label": 12}
                | ({"shift": 1} if kind in OF_VIEWS else {})
            )
            generator = torch.Generator().manual_seed(0)
            encoder = build_encoder(NetworkConfig(), generator)
            dim = encoder.last_layer.out_features
            objective = objective_of(config, dim, int(labels.max()) + 1, generator)
            source = feature_source(encoder.eval(), images, config, generator)
            n_steps, _ = batches_of(objective.sampling, labels, config, generator)
            started = time.process_time()
            train(encoder, objective, source, labels, config, generator)
            best[kind] = min(best[kind], (time.process_time() - started) / n_steps)
    console.quiet = False
    ratios = {f"objective_cost_{kind}": best[kind] / best[BASELINE] for kind in OBJECTIVES}
    return {"objective_cost": max(ratios.values()), **ratios}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))

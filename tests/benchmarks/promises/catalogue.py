"""The worlds that promises are measured in."""

from __future__ import annotations

from .worlds import WorldSpec

WORLDS = (
    WorldSpec("2 labels", n_labels=2),
    WorldSpec("2 labels, one withheld", n_labels=2, n_withheld=300, per_withheld=300),
    WorldSpec("2 labels, 60 withheld", n_labels=2, n_withheld=300),
    WorldSpec("3 labels", n_labels=3),
    WorldSpec("5 labels", n_labels=5),
    WorldSpec("10 labels, 100 queries", n_labels=10, n_calibration=100),
    WorldSpec("40 labels, 50 queries", n_calibration=50),
    WorldSpec("40 labels, 100 queries", n_calibration=100),
    WorldSpec("40 labels", n_calibration=300),
    WorldSpec("40 labels, 1000 queries", n_calibration=1000),
    WorldSpec("100 labels", n_labels=100),
    WorldSpec("imbalanced", sizes="zipf"),
    WorldSpec("20 labels of 20 images, 150 of one", sizes="rare"),
    WorldSpec(
        "20 labels of 20 images, 60 of 3, 100 of one", sizes="mixed", n_calibration=100, unseen=True
    ),
    WorldSpec("5 % wrong labels", label_noise=0.05),
    WorldSpec(
        "4 photographs an object",
        n_labels=20,
        n_calibration=640,
        group_size=4,
        spread=0.3,
        object_spread=0.7,
    ),
    WorldSpec(
        "8 photographs an object",
        n_labels=20,
        n_calibration=1600,
        group_size=8,
        spread=0.3,
        object_spread=0.7,
    ),
    WorldSpec("25 labels, a tenth look-alikes", n_labels=25, look_alikes=0.1),
    WorldSpec("40 labels, a tenth look-alikes", look_alikes=0.1),
    WorldSpec("withheld labels", n_withheld=100),
)
"""Each has 300 calibration queries where its name says nothing else."""

WITH_GROUPS = "4 photographs an object"
WRONG_LABELS = "5 % wrong labels"
LARGE = "40 labels, 1000 queries"
"""Where promises are possible even after probabilities have been corrected."""

ORDINARY = "40 labels"


def spec_of(name: str) -> WorldSpec:
    """Return the world of a name."""
    return next(spec for spec in WORLDS if spec.name == name)

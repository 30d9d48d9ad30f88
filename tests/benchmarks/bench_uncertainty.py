"""What the served uncertainties tell, on five data sets, with similarity alone beside them.

Each data set is divided by kind: of some kinds a part is indexed by `vouch-build all --images` with
the encoder that comes with Vouch, and the rest asks; other kinds are absent. AUROC of each signal
for three duties: the first result of a known kind is wrong; the kind is absent; the picture is
degraded (blur, noise, darkness, a crop, JPEG), against the same pictures before. Means over
divisions, with 1.96 standard errors. The build saw no query. Needs VOUCH_DATA_DIR.

The head that sees the state of a picture is judged, too, by pictures degraded in a way that it has
not learned (another one in each division), by three strengths of each degradation in place of
random ones, which may be invisible, by the rank correlation with the displacement, and by
what it adds to the match probability where degraded pictures find a wrong first result (two
logistic regressions, five folds).

`rank_stability` and `similarity_std` are compared with sampled layers, too: of 400 last layers
drawn from the posterior, the share under which an item is among the first ten, and the standard
deviation of its similarity.

    python -m tests.benchmarks.bench_uncertainty [number of divisions]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from index_builder.calibration.detector import fit_picture_state
from index_builder.calibration.evaluate import Answers, ask
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import DEGRADATIONS, DEGRADE, degraded
from index_builder.datasets.folder import folder
from index_builder.datasets.images import Pixels, changed
from index_builder.datasets.small_images import idx_dataset
from index_builder.metrics import auroc
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from index_builder.posteriors.stored import load_posterior
from index_builder.reproduction.data_sets import Origin, cifar10
from index_builder.vectors.encoder import embed_with_features
from model_store import Retriever, open_bundle
from model_store.decision.outliers import DisplacementModel
from model_store.encoder.contract import Embeddings
from model_store.sphere import unit_direction
from tests.benchmarks.measured import record_table
from tests.benchmarks.photographs import unpacked
from tests.benchmarks.preconditions import data_dir
from tests.support.narrowing import instance_of, not_none

N_LAYERS, N_LISTED = 400, 10

STRENGTHS = (1 / 3, 2 / 3, 1.0)

N_FUSED = 10
"""Right and wrong first results that a logistic regression takes."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a data set is divided: labels with a gallery, images of each, and absent labels."""

    n_known: int
    n_indexed: int
    n_asked: int
    n_absent: int


SETS: Mapping[str, Sizes] = {
    "caltech101_half": Sizes(38, 15, 5, 12),
    "cub_first10": Sizes(7, 30, 20, 3),
    "omniglot": Sizes(60, 12, 4, 20),
    "cifar10": Sizes(8, 60, 20, 2),
    "fashion-mnist": Sizes(8, 60, 20, 2),
}

SIGNALS = ("similarity", "variance of the query", "uncertainty", "match", "no match", "outlier")


def source(name: str, data: Path, scratch: Path) -> LabelledImages:
    """Return all images of a data set that a division may take."""
    if name == "fashion-mnist":
        return idx_dataset("FashionMNIST", "t10k")
    if name == "cifar10":
        return cifar10(Origin(data)).parts["test"]
    (scratch / name).mkdir()
    return folder(unpacked(name, data, scratch / name))


def divided(
    images: LabelledImages, sizes: Sizes, into: Path, seed: int
) -> tuple[LabelledImages, LabelledImages]:
    """Write the images to index to a folder, and return queries of known and of absent labels."""
    generator = np.random.default_rng(seed)
    labels = np.array(images.labels)
    names = generator.permutation(sorted(set(images.labels)))[: sizes.n_known + sizes.n_absent]
    known: list[int] = []
    absent: list[int] = []
    for place, name in enumerate(names.tolist()):
        rows = generator.permutation(np.flatnonzero(labels == name)).tolist()
        if place >= sizes.n_known:
            absent += rows[: 3 * sizes.n_asked]
            continue
        target = into / f"{place:03d}"
        target.mkdir(parents=True)
        for row in rows[: sizes.n_indexed]:
            Image.fromarray(images.pixels(row)).save(target / f"{row}.png")
        known += rows[sizes.n_indexed : sizes.n_indexed + sizes.n_asked]
    code = {name: f"{place:03d}" for place, name in enumerate(names.tolist())}

    def renamed(rows: list[int]) -> LabelledImages:
        some = images.at(rows)
        return LabelledImages(
            some.ids, tuple(code[label] for label in some.labels), some.read, some.rows
        )

    return renamed(known), renamed(absent)


def signals(answers: Answers) -> dict[str, Floats]:
    """Return each signal (B,) of what is doubtful; larger is the more doubtful."""
    return {
        "similarity": -answers.first_similarities,
        "variance of the query": np.array(
            [one.predictive.spherical_variance for one in answers.answers]
        ),
        "uncertainty": answers.uncertainties,
        "match": 1 - answers.first_probabilities,
        "no match": answers.no_match_probabilities,
        "outlier": answers.outlier_scores,
    }


def measured(name: str, images: LabelledImages, seed: int) -> dict[str, Any]:
    """Build a gallery, ask it, and return the AUROC of each signal for each duty."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        known, absent = divided(images, SETS[name], place / "gallery", seed)
        command = [sys.executable, "-m", "index_builder", "all", "--images", "gallery", "--quiet"]
        subprocess.run(command, check=True, capture_output=True, cwd=place)
        retriever = open_bundle(place / "bundles" / "gallery").retriever
        of_known, of_absent = ask(retriever, known, "known"), ask(retriever, absent, "absent")
        spoilt_images = degraded(known, seed)
        poor = ask(retriever, spoilt_images, "degraded")
        posterior = place / "runs" / "gallery" / "posterior.safetensors"
        indexed = folder(place / "gallery")
        clean = embed_with_features(retriever.encoder, known, "queries")
        items = embed_with_features(retriever.encoder, indexed, "items")
        layers = against_layers(retriever, posterior, indexed, items, clean.at(slice(0, None, 2)))
        of_head = judged_head(retriever, indexed, known, clean, spoilt_images, seed)
    right = of_known.matches[:, 0]
    ordinary, alien, spoilt = signals(of_known), signals(of_absent), signals(poor)
    found: dict[str, Any] = {
        "recall_at_1": float(right.mean()),
        "recall_at_1, features without the last layer": recall_of_features(
            clean.features, known.labels, items.features, indexed.labels
        ),
        **layers,
    }
    for signal in SIGNALS:
        values = ordinary[signal]
        found[f"wrong: {signal}"] = auroc(values[~right], values[right])
        found[f"absent: {signal}"] = auroc(alien[signal], values)
        found[f"degraded: {signal}"] = auroc(spoilt[signal], values)
    moved = [
        np.array([one.predictive.displacement for one in answers.answers])
        for answers in (poor, of_known)
    ]
    found["degraded: aleatoric"] = auroc(*moved)
    found |= of_head
    directions, ordinary_ones = (
        np.array([one.predictive.direction for one in answers.answers])
        for answers in (poor, of_known)
    )
    displaced = 1 - (directions * ordinary_ones).sum(axis=1)
    found["aleatoric, rank correlation with the displacement"] = float(
        spearmanr(moved[0], displaced).statistic
    )
    is_wrong = ~poor.matches[:, 0]
    doubts = np.log(1e-6 + np.stack([1 - poor.first_probabilities, moved[0]], axis=1))
    for columns, fusion in ((1, "match"), (2, "match and aleatoric")):
        found[f"wrong and degraded: {fusion}"] = fused(doubts[:, :columns], is_wrong)
    return found


def recall_of_features(
    queries: NDArray[np.float32],
    asked: Sequence[str],
    items: NDArray[np.float32],
    indexed: Sequence[str],
) -> float:
    """Return the share of queries whose most similar item by the features (·, F) is of their label.

    Parameters
    ----------
    asked, indexed : labels of the queries and of the items.
    """
    nearest = (unit_direction(queries) @ unit_direction(items).T).argmax(axis=1)
    return float((np.array(indexed)[nearest] == np.array(asked)).mean())


def fused(signals: Floats, is_wrong: NDArray[np.bool_]) -> float | None:
    """Return the AUROC of a logistic regression on ``signals`` (B, S), cross-fitted."""
    if min(int(is_wrong.sum()), int((~is_wrong).sum())) < N_FUSED:
        return None
    model = make_pipeline(StandardScaler(), LogisticRegression())
    found = cross_val_predict(model, signals, is_wrong, cv=5, method="decision_function")
    return auroc(found[is_wrong], found[~is_wrong])


def judged_head(
    retriever: Retriever,
    indexed: LabelledImages,
    known: LabelledImages,
    clean: Embeddings,
    spoilt: LabelledImages,
    seed: int,
) -> dict[str, float]:
    """Return AUROCs of the served head, and of a head that has not learned one kind.

    Parameters
    ----------
    indexed : images of the gallery.
    known, clean : the queries, and their embeddings.
    spoilt : the queries, degraded in all ways in turn.
    """
    served = not_none(not_none(retriever.calibration).picture)
    unlearned = seed % len(DEGRADATIONS)
    others = [name for place, name in enumerate(DEGRADATIONS) if place != unlearned]
    order = np.random.default_rng(seed).permutation(len(indexed))
    head = not_none(fit_picture_state(retriever.encoder, indexed.at(order), seed, others))

    def judged(model: DisplacementModel, images: LabelledImages) -> float:
        features = embed_with_features(retriever.encoder, images, "degraded").features
        return not_none(auroc(model.displacement(features), model.displacement(clean.features)))

    poor = spoilt.at(range(unlearned, len(spoilt), len(DEGRADATIONS)))
    cells = {kind: [at_strength(known, kind, one, seed) for one in STRENGTHS] for kind in DEGRADE}
    of_served = [judged(served, images) for some in cells.values() for images in some]
    of_head = [judged(head, images) for images in cells[DEGRADATIONS[unlearned]]]
    return {
        "degraded in a way not learned: aleatoric": judged(head, poor),
        "degraded, three strengths: aleatoric": float(np.mean(of_served)),
        "degraded in a way not learned, three strengths: aleatoric": float(np.mean(of_head)),
    }


def at_strength(images: LabelledImages, kind: str, strength: float, seed: int) -> LabelledImages:
    """Return every second image, degraded in one way."""

    def change(pixels: Pixels, position: int) -> Pixels:
        return DEGRADE[kind](pixels, strength, np.random.default_rng([seed, position, 2]))

    some = images.at(range(0, len(images), 2))
    return changed(some, f"{kind} {strength} {seed}", change)


def against_layers(
    retriever: Retriever,
    posterior: Path,
    indexed: LabelledImages,
    items: Embeddings,
    asked: Embeddings,
) -> dict[str, float]:
    """Compare what is served of ranks and similarities with what sampled layers give."""
    fitted = instance_of(KroneckerPosterior, load_posterior(posterior))
    generator = torch.Generator().manual_seed(0)
    drawn = np.empty((N_LAYERS, len(asked), len(indexed)), dtype=np.float32)
    for place in range(N_LAYERS):
        weights, biases = (part[0] for part in fitted.sample(1, generator))
        of_queries, of_items = (
            torch.nn.functional.normalize(torch.from_numpy(one.features) @ weights.T + biases)
            for one in (asked, items)
        )
        drawn[place] = (of_queries @ of_items.T).numpy()
    tenth = np.sort(drawn, axis=2)[:, :, -N_LISTED, None]
    shares = (drawn >= tenth).mean(axis=0)
    row_of = {name: row for row, name in enumerate(indexed.ids)}
    served, wanted, stds, of_layers = [], [], [], []
    for place, predictive in enumerate(retriever.predictives(asked)):
        for match in retriever.find(predictive, N_LISTED).matches:
            row = row_of[match.id]
            served.append(match.rank_stability)
            wanted.append(shares[place, row])
            stds.append(match.similarity_std)
            of_layers.append(drawn[:, place, row].std())
    said, real = np.array(served, dtype=float), np.array(wanted)
    bins = np.clip((said * 10).astype(int), 0, 9)
    gaps = [
        (bins == one).mean() * abs(said[bins == one].mean() - real[bins == one].mean())
        for one in np.unique(bins)
    ]
    return {
        "rank_stability_ece": float(np.sum(gaps)),
        "similarity_std_over_layers": float(np.median(np.array(stds, float) / np.array(of_layers))),
    }


def measure(n_divisions: int = 5) -> dict[str, list[dict[str, Any]]]:
    """Return the numbers of each division, by data set."""
    data = data_dir()
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in SETS:
            images = source(name, data, Path(scratch))
            results[name] = [measured(name, images, seed) for seed in range(n_divisions)]
            print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    return results


def record(results: Mapping[str, Sequence[Mapping[str, float | None]]]) -> None:
    """Write a table of means with 1.96 standard errors: a row for each number, all sets beside."""
    names = [name for name in results if results[name]]
    rows = []
    for key in results[names[0]][0]:
        values = {
            name: [value for one in results[name] if (value := one.get(key)) is not None]
            for name in names
        }
        means = [float(np.mean(some)) for some in values.values() if some]
        row = [key.replace("_", " "), *(_interval(some) for some in values.values())]
        rows.append([*row, f"{np.mean(means):.3f}" if means else "–"])
    counts = ", ".join(f"{name} {len(results[name])}" for name in names)
    record_table(
        "uncertainty",
        ["", *names, "mean"],
        rows,
        globals(),
        about=f"AUROC, unless the row says otherwise; mean ± 1.96 standard errors over divisions "
        f"({counts}).",
    )


def _interval(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{np.mean(values):.3f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5:.3f}"


if __name__ == "__main__":
    record(measure(*map(int, sys.argv[1:2])))

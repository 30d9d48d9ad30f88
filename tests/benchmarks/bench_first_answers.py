"""The first answers on photographs that the build has not seen, over HTTP, on five divisions.

As in the README's first recipe: `vouch-build all --images FOLDER` on 38 kinds of Caltech-101 with
15 photographs each, then `vouch-serve`. Five more photographs of each kind are queries, and 20 of
each of 12 kinds that the folder lacks, in random order. The same again with 16 of the kinds
withheld, beside a build of the other 22 alone: the cost of evidence of absent queries. The build
has seen no query. Needs VOUCH_DATA_DIR.

    python -m tests.benchmarks.bench_first_answers [number of divisions]
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index_builder.metrics import auroc
from tests.benchmarks.measured import record_figures
from tests.benchmarks.photographs import unpacked
from tests.benchmarks.preconditions import data_dir
from tests.end_to_end.processes import Service

NAME = "photographs"
N_KNOWN, N_IN_GALLERY, N_WITHHELD = 38, 15, 16

EXPECTED_ABSENT = 0.05
"""The share of absent queries that answers are given for by default."""

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Division:
    """A division of the photographs.

    Attributes
    ----------
    gallery : folder with a sub-folder for each known kind.
    known : photographs of these kinds that the gallery lacks.
    absent : photographs of other kinds.
    """

    gallery: Path
    known: Sequence[Path]
    absent: Sequence[Path]


def divided(root: Path, into: Path, seed: int) -> Division:
    """Divide the photographs below ``root``."""
    generator = np.random.default_rng(seed)
    kinds = sorted(path for path in root.iterdir() if path.is_dir())
    order = generator.permutation(len(kinds))
    known: list[Path] = []
    absent: list[Path] = []
    for place, number in enumerate(order.tolist()):
        photographs = sorted(kinds[number].iterdir())
        photographs = [photographs[i] for i in generator.permutation(len(photographs))]
        if place >= N_KNOWN:
            absent += photographs
            continue
        folder = into / kinds[number].name
        folder.mkdir(parents=True)
        for photograph in photographs[:N_IN_GALLERY]:
            shutil.copy(photograph, folder)
        known += photographs[N_IN_GALLERY:]
    return Division(into, known, absent)


def build(images: Path, scratch: Path, withheld: Sequence[str] = ()) -> Path:
    """Run the first recipe, or the same by a configuration that withholds labels."""
    arguments = ["--images", str(images), "--name", NAME]
    if withheld:
        config = scratch / "config.toml"
        names = ", ".join(json.dumps(name) for name in withheld)
        config.write_text(
            f'name = "{NAME}"\n[dataset]\npath = "{images}"\nwithheld_labels = [{names}]\n'
        )
        arguments = ["--config", str(config)]
    bundles = scratch / "bundles"
    command = [sys.executable, "-m", "index_builder", "all", *arguments]
    command += ["--run", str(scratch / "run"), "--bundles", str(bundles)]
    subprocess.run(command, check=True, capture_output=True)
    return bundles


def asked(bundles: Path, division: Division, known: Sequence[Path]) -> dict[str, float]:
    """Ask a served gallery everything, in random order."""
    photographs = [*known, *division.absent]
    order = np.random.default_rng(0).permutation(len(photographs))
    answers: list[dict[str, Any]] = [{}] * len(photographs)
    with Service(bundles, bundles.parent / "service.log") as service:
        for place in order.tolist():
            reply = service.ask(photographs[place].read_bytes(), NAME)
            answers[place] = reply.raise_for_status().json()
    first = [answer["results"][0] for answer in answers]
    of_known = np.arange(len(photographs)) < len(known)
    right = np.array(
        [one["label"] == path.parent.name for one, path in zip(first, photographs, strict=True)]
    )
    is_match = np.array([answer["verdict"] == "match" for answer in answers])
    p_values = np.array([answer["query"]["ood"]["p_value"] for answer in answers])
    similarity = np.array([one["similarity"] for one in first])
    no_match = np.array([answer["no_match_probability"] for answer in answers])
    match_share, false_match = is_match[of_known].mean(), is_match[~of_known].mean()
    wrong = (is_match & ~right)[of_known].mean()
    share = EXPECTED_ABSENT
    given = (1 - share) * match_share + share * false_match
    error = ((1 - share) * wrong + share * false_match) / given if given else 0.0
    return {
        "recall_at_1": float(right[of_known].mean()),
        "match_share": float(match_share),
        "match_error": float(error),
        "false_match_rate": float(false_match),
        "false_alarms": float((p_values[of_known] <= ALPHA).mean()),
        "absent_flagged": float((p_values[~of_known] <= ALPHA).mean()),
        "absent_auroc": auroc(no_match[~of_known], no_match[of_known]) or 0.0,
        "absent_auroc_of_similarity": auroc(-similarity[~of_known], -similarity[of_known]) or 0.0,
    }


def measure(n_divisions: int = 5) -> dict[str, float]:
    """Return the means over the divisions, and the largest error of `match`."""
    found: dict[str, list[dict[str, float]]] = {"first": [], "fewer": [], "withheld": []}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "photographs").mkdir()
        root = unpacked("caltech101_half", data_dir(), scratch / "photographs")
        for seed in range(n_divisions):
            place = scratch / str(seed)
            division = divided(root, place / "gallery", seed)
            found["first"].append(asked(build(place / "gallery", place), division, division.known))
            kinds = sorted(path.name for path in (place / "gallery").iterdir())
            withheld = kinds[:N_WITHHELD]
            known = [path for path in division.known if path.parent.name not in withheld]
            (place / "withheld").mkdir()
            bundles = build(place / "gallery", place / "withheld", withheld)
            found["withheld"].append(asked(bundles, division, known))
            for kind in withheld:
                shutil.rmtree(place / "gallery" / kind)
            (place / "fewer").mkdir()
            bundles = build(place / "gallery", place / "fewer")
            found["fewer"].append(asked(bundles, division, known))
    results = {}
    for recipe, rows in found.items():
        for key in rows[0]:
            values = [row[key] for row in rows]
            results[f"first_answers_{recipe}_{key}"] = statistics.fmean(values)
        results[f"first_answers_{recipe}_largest_match_error"] = max(
            row["match_error"] for row in rows
        )
    return results


if __name__ == "__main__":
    found = measure(*map(int, sys.argv[1:2]))
    print(json.dumps(found, indent=1))
    record_figures("first-answers", found, globals())

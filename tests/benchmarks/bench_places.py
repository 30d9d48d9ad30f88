"""Places: are probabilities and the error bound right where distance defines a match?

A made street (3 km) and a made quarter (600 m by 600 m). The embedding of a photograph is a smooth
random function of its position, plus noise whose size differs from photograph to photograph. The
gallery has photographs at random positions; each of them within 25 m is a true match. A quarter of
the queries are of streets that the gallery lacks. Each draw is indexed, calibrated with 400 queries
that have a match (`--queries --within 25`), and asked as a service is. On 1,500 other queries of
each draw, at the expected share of absent queries:

- ECE of the first result's probability, and of the other results of the list;
- the first result under a filter that excludes the first result without a filter: its probability,
  how often it is right, and how many of its `match` verdicts are wrong;
- the share of `match`, and how much of it is wrong; in how many draws more than `--max-error`;
- the AUROC of P(no match) and of the similarity, absent queries against others.

    python -m tests.benchmarks.bench_places [DRAWS]

Writes docs/measured/places.json. Ten minutes.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.metrics import auroc, calibration_error, reliability
from model_store.bundles.bundle import open_bundle
from model_store.gallery import parse_filter
from model_store.queries import VectorQuery, predictive_of
from model_store.truth import Within, wgs84
from tests.benchmarks.measured import mean_rows, record_table
from tests.support.build_command import vouch_build
from tests.support.narrowing import not_none

DRAWS = 5
METRES, MAX_ERROR = 25.0, 0.1
N_ASKED, N_LATER = 400, 1_500
DIM, LIMIT = 48, 10
DEGREE = 111_320.0
"""Metres of a degree at the equator, where the worlds are."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Photographs of places.

    Attributes
    ----------
    sides : lengths in metres; one for a street, two for a quarter.
    n_items : number of photographs in the gallery.
    noise : size of the noise.
    scale : distance in metres over which a photograph changes; the larger, the more places look
        like one another.
    """

    sides: tuple[float, ...]
    n_items: int
    noise: float
    scale: float

    def draw(self, where: Path, seed: int) -> dict[str, Floats]:
        """Write the embeddings and positions of three sets of photographs; return the positions."""
        generator = np.random.default_rng(seed)
        waves = generator.normal(0, 1 / self.scale, (len(self.sides), DIM // 2))
        sides = np.array(self.sides)

        def near(n: int) -> Floats:
            return generator.uniform(0, sides, (n, len(sides)))

        sets = {"items": near(self.n_items)}
        for name, n in (("asked", N_ASKED), ("later", N_LATER)):
            sets[name] = np.concatenate([near(n), near(n // 3) + 2 * sides])
        found = {}
        for name, metres in sets.items():
            angles = metres @ waves
            clean = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
            of_each = self.noise * generator.lognormal(0, 0.5, (len(metres), 1))
            noisy = clean + of_each * generator.standard_normal(clean.shape)
            np.save(where / f"{name}.npy", noisy.astype(np.float32))
            degrees = np.zeros((len(metres), 2))
            degrees[:, : len(sides)] = metres / DEGREE
            with (where / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["id", "longitude", "latitude"])
                rows = enumerate(degrees.tolist())
                writer.writerows([f"{name}-{row}", *map(repr, one)] for row, one in rows)
            found[name] = wgs84(degrees[:, 1], degrees[:, 0])
        return found


WORLDS = {
    "street, precise": World((3_000.0,), 600, 0.15, 40.0),
    "street, noisy": World((3_000.0,), 600, 0.6, 40.0),
    "street, smooth": World((3_000.0,), 600, 0.35, 150.0),
    "quarter": World((600.0, 600.0), 1_500, 0.4, 40.0),
}
TITLES = {
    "recall": "first result right, of queries with a match",
    "ece": "ECE of the first result",
    "ece_of_others": "ECE of results 2 to 10",
    "match_share": "`match`",
    "wrong": "of these wrong (0.1 allowed)",
    "broken": "draws with more",
    "said_divided": "with a filter that excludes the first result: its probability",
    "right_divided": "it is right",
    "wrong_divided": "its `match` verdicts that are wrong (not guaranteed)",
    "no_match": "AUROC, absent: P(no match)",
    "similarity": "AUROC, absent: similarity",
}


def measure(world: World, seed: int) -> dict[str, float | None]:
    """Index, calibrate and ask one draw."""
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        positions = world.draw(where, seed)
        for arguments in (
            ["index", "items.npy", "--items", "items.csv", "--encoder-name", "it", "--name", "it"],
            [
                *("calibrate", "bundles/it", "--queries", "asked.npy", "--items", "asked.csv"),
                *("--gallery", "items.npy", "--gallery-items", "items.csv"),
                *("--within", str(METRES), "--max-error", str(MAX_ERROR)),
            ],
        ):
            done = vouch_build(*arguments, cwd=where)
            assert done.returncode == 0, done.stderr
        retriever = open_bundle(where / "bundles" / "it", "cpu", threads=1).retriever
        vectors = np.load(where / "later.npy")
        queries = [predictive_of(retriever, VectorQuery(vector)) for vector in vectors]
        answers = [retriever.find(query, LIMIT) for query in queries]
        divided = [
            retriever.find(query, 1, where=parse_filter({"id": {"ne": answer.matches[0].id}}))
            for query, answer in zip(queries, answers, strict=True)
        ]
    near = Within(positions["later"], positions["items"], METRES)
    rows = np.array([[int(m.id.split("-")[1]) for m in one.matches] for one in answers])
    right = near.matches(np.arange(len(answers)), rows)
    absent = near.counts() == 0
    said = np.array([[not_none(m.match_probability) for m in one.matches] for one in answers])
    share = not_none(retriever.calibration).default_share
    weights = np.where(absent, share / absent.sum(), (1 - share) / (~absent).sum())
    is_match = np.array([one.decision.verdict == "match" for one in answers])
    answered = float(weights[is_match].sum())
    wrong = float(weights[is_match & ~right[:, 0]].sum()) / answered if answered else None
    nothing = np.array([not_none(one.decision.no_match_probability) for one in answers])
    first = np.array([one.matches[0].similarity for one in answers])
    of_others = np.repeat(weights, LIMIT - 1) / (LIMIT - 1)
    seconds = [one.matches[0] for one in divided]
    said_divided = np.array([not_none(one.match_probability) for one in seconds])
    rows = np.array([[int(one.id.split("-")[1])] for one in seconds])
    right_divided = near.matches(np.arange(len(rows)), rows)[:, 0]
    of_match = weights * np.array([one.decision.verdict == "match" for one in divided])
    return {
        "recall": float(right[~absent, 0].mean()),
        "ece": calibration_error(reliability(said[:, 0], right[:, 0], weights=weights)),
        "ece_of_others": calibration_error(
            reliability(said[:, 1:].ravel(), right[:, 1:].ravel(), weights=of_others)
        ),
        "match_share": answered,
        "wrong": wrong,
        "broken": float(wrong is not None and wrong > MAX_ERROR),
        "said_divided": float(weights @ said_divided),
        "right_divided": float(weights @ right_divided),
        "wrong_divided": float(of_match @ ~right_divided / of_match.sum())
        if any(of_match)
        else None,
        "no_match": auroc(nothing[absent], nothing[~absent]),
        "similarity": auroc(-first[absent], -first[~absent]),
    }


def main(n_draws: int) -> None:
    """Measure, print, write."""
    results = {}
    for name, world in WORLDS.items():
        results[name] = [measure(world, seed) for seed in range(n_draws)]
        print(name, *results[name], sep="\n  ", flush=True)
    record_table(
        "places",
        ["", *results],
        mean_rows(TITLES, results),
        globals(),
        about=f"{n_draws} draws of each made world, matches within {METRES:g} m. Mean ± standard "
        "deviation over draws. A twentieth of the queries is absent, by weight.",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS)

"""Plots: each is drawn as the picture that was looked at, from arrays and from records.

``VOUCH_WRITE_PICTURES=1 pytest tests/vouch_search/test_plots.py`` writes the pictures anew.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from PIL import Image

from model_store.decision.probabilities import Recalibration
from model_store.decision.promises import Promises
from tests.support.calibration_evidence import evidence
from vouch_search import plots

BASELINES = Path(__file__).parent / "pictures"
TOLERANCE = 6
"""Root mean square of 256 levels: another anti-aliasing passes, a point or a word less does not."""

RANDOM = np.random.default_rng(3)
PROBABILITIES = RANDOM.beta(3, 1, 400)
RIGHT = RANDOM.uniform(size=400) < PROBABILITIES


def calibration() -> Any:
    """The part of a calibration that plots read, of evidence whose truth is known."""
    found = evidence()
    promises = Promises(found, np.array([0, 0, 20]), 0.05, 0.05, Recalibration(), 0.05, None, 0.1)
    bins = [
        {"n": 40, "probability": 0.1, "share": 0.125, "weight": 0.1},
        {"n": 60, "probability": 0.7, "share": 0.6, "weight": 0.2},
        {"n": 300, "probability": 0.97, "share": 0.98, "weight": 0.7},
    ]
    return SimpleNamespace(
        promises=lambda: promises,
        evidence=found,
        report={"cross_fitted": {"reliability": bins}},
        max_error=0.05,
        similarity_stds=np.sort(RANDOM.gamma(4, 0.01, 300)),
    )


def result(label: str, probability: float, similarity: float) -> dict[str, Any]:
    return {
        "id": f"{label}/1.webp",
        "label": label,
        "match_probability": probability,
        "similarity": similarity,
        "similarity_std": 0.02,
    }


ANSWER: dict[str, Any] = {
    "verdict": "ambiguous",
    "results": [result("owl", 0.9999, 0.93), result("$x_", 0.42, 0.9), result("", 0.03, 0.7)],
}
"""An answer as the service gives it; a label may look like a formula."""


def picture(item_id: str) -> Image.Image:
    return Image.new("RGB", (40, 30), {"o": "orange", "$": "green", "/": "navy"}[item_id[0]])


def draw_results(ax: Axes) -> Axes:
    return plots.results(ANSWER, picture, query=np.full((20, 20, 3), 90, np.uint8), ax=ax)


def draw_roc(ax: Axes) -> Axes:
    plots.roc(calibration(), ax=ax)
    return plots.roc(np.arange(20), np.arange(-5, 15), label="similarity", ax=ax)


def draw_map(ax: Axes) -> Axes:
    random = np.random.default_rng(0)
    centres = random.normal(size=(12, 8)) * 3
    labels = np.repeat(np.arange(12), 20)
    vectors = centres[labels] + random.normal(size=(240, 8))
    names = [f"kind {code}" for code in labels]
    return plots.gallery_map(vectors, random.gamma(2, size=240), names, method="pca", ax=ax)


def draw_degradation(ax: Axes) -> Axes:
    levels = np.array([0, 1, 2, 4])
    values = np.add.outer(levels, np.linspace(1, 3, 9))
    plots.degradation(levels, values, label="blur", ax=ax)
    return plots.degradation(levels, values / 2, label="noise", ax=ax)


DRAWINGS: dict[str, Callable[[Axes], Axes]] = {
    "reliability": lambda ax: plots.reliability(PROBABILITIES, RIGHT, ax=ax),
    "reliability_of_calibration": lambda ax: plots.reliability(calibration(), ax=ax),
    "risk_coverage": lambda ax: plots.risk_coverage(PROBABILITIES, RIGHT, ax=ax),
    "risk_coverage_of_calibration": lambda ax: plots.risk_coverage(calibration(), ax=ax),
    "roc": draw_roc,
    "results": draw_results,
    "posterior": lambda ax: plots.posterior(ANSWER, ax=ax),
    "gallery_map": draw_map,
    "degradation": draw_degradation,
    "uncertainties": lambda ax: plots.uncertainties(
        np.linspace(0, 1, 200) ** 2, [0.04, 0.81], ax=ax
    ),
}


@pytest.fixture(autouse=True)
def plain_style() -> Iterator[None]:
    """The style that matplotlib comes with, whatever is set on this machine."""
    with mpl.rc_context():
        mpl.rcdefaults()
        yield


@pytest.mark.parametrize("name", DRAWINGS)
def test_plot_equals_the_reviewed_picture(name: str, tmp_path: Path) -> None:
    figure = Figure(figsize=(4, 3), dpi=60, layout="constrained")
    ax = figure.add_subplot()
    assert DRAWINGS[name](ax) is ax
    FigureCanvasAgg(figure)
    drawn = tmp_path / f"{name}.png"
    figure.savefig(drawn, metadata={"Software": None})
    if os.environ.get("VOUCH_WRITE_PICTURES"):
        BASELINES.mkdir(exist_ok=True)
        Image.open(drawn).convert("RGB").quantize(64).save(BASELINES / drawn.name, optimize=True)
    assert compare_images(str(BASELINES / drawn.name), str(drawn), TOLERANCE) is None


def test_plot_without_axes_draws_into_the_current_ones() -> None:
    from matplotlib import pyplot as plt

    plt.switch_backend("agg")
    ax = plt.figure().add_subplot()
    assert plots.uncertainties([0.1, 0.2, 0.4], [0.3]) is ax
    plt.close("all")


def test_plots_of_a_report_and_an_evaluation_are_those_of_their_numbers() -> None:
    points = [
        {"coverage": 0.4, "error": 0.01, "error_bound": 0.03},
        {"coverage": 0.9, "error": 0.2},
    ]
    report = {"risk_coverage": points, "point": points[0], "max_error": 0.05}
    ax = plots.risk_coverage(report, ax=Figure().add_subplot())
    curve, limit, bound, marked = (line.get_xydata().tolist() for line in ax.lines)  # type: ignore[union-attr]
    assert curve == [[0.4, 0.01], [0.9, 0.2]]
    assert [y for _, y in limit] == [0.05, 0.05]
    assert (bound, marked) == ([[0.4, 0.01], [0.4, 0.03]], [[0.4, 0.01]])
    legend = ax.get_legend()
    assert legend is not None
    assert "match: 40% of queries, error ≤ 3.0%" in [one.get_text() for one in legend.get_texts()]
    evaluation = {"n_queries": 9, "stream": {"risk_coverage": [[0.5, 0.1], [1.0, 0.2]]}}
    ax = plots.risk_coverage(evaluation, ax=Figure().add_subplot())
    (line,) = ax.lines
    assert line.get_xydata().tolist() == [[0.5, 0.1], [1.0, 0.2]]  # type: ignore[union-attr]


def test_a_gallery_is_drawn_by_its_calibration_and_its_items() -> None:
    items = SimpleNamespace(
        n_rows=5,
        directions=lambda rows: np.eye(5, 3)[rows],
        total_variances=lambda rows: rows / 10,
        items=lambda rows: [SimpleNamespace(label="ab"[row % 2]) for row in rows],
    )
    retriever = SimpleNamespace(calibration=calibration(), gallery=items)
    gallery = SimpleNamespace(_bundle=SimpleNamespace(retriever=retriever, name="shoes"))
    axes = [Figure().add_subplot() for _ in range(8)]
    for draw, ax, other in (
        (plots.reliability, axes[0], axes[1]),
        (plots.risk_coverage, axes[2], axes[3]),
        (plots.uncertainties, axes[4], axes[5]),
        (plots.roc, axes[6], axes[7]),
    ):
        draw(gallery, ax=ax)
        draw(retriever.calibration, ax=other)
        assert [repr(one.get_xydata()) for one in ax.lines] == [
            repr(one.get_xydata()) for one in other.lines
        ]
    ax = plots.gallery_map(gallery, method="pca", ax=Figure().add_subplot())
    assert [len(np.asarray(one.get_offsets())) for one in ax.collections] == [3, 0, 2, 0]
    retriever.calibration = None
    with pytest.raises(ValueError, match="'shoes' is not calibrated"):
        plots.reliability(gallery, ax=ax)


def test_a_gallery_of_a_service_is_drawn_by_its_calibration_report() -> None:
    report = {"reliability": calibration().report["cross_fitted"]["reliability"]}
    client = SimpleNamespace(calibration={"shoes": report}.__getitem__)
    gallery = SimpleNamespace(_client=client, name="shoes")
    axes = [plots.reliability(one, ax=Figure().add_subplot()) for one in (gallery, report)]
    texts = [[text.get_text() for text in ax.texts] for ax in axes]
    assert texts[0] == texts[1] == ["calibration error 0.030\n400 queries"]
    with pytest.raises(TypeError, match="has no field 'evidence'"):
        plots.roc(gallery, ax=axes[0])


def test_pictures_of_results_are_the_thumbnails_of_the_answer() -> None:
    def strip(thumbnail: Any) -> Axes:
        answer = SimpleNamespace(results=ANSWER["results"], _picture_of=thumbnail)
        return plots.results(answer, limit=1, ax=Figure().add_subplot())

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "orange").save(buffer, "PNG")
    (image,) = strip(lambda _: (buffer.getvalue(), "image/png")).images
    assert image.get_array()[80, 80].tolist() == [255, 165, 0]  # type: ignore[index]
    with pytest.raises(ValueError, match="has no thumbnail, because"):
        strip(lambda _: None)
    with pytest.raises(TypeError, match="Give picture_of"):
        plots.results(ANSWER, ax=Figure().add_subplot())


def test_answers_of_library_and_service_give_the_same_strip() -> None:
    matches = [
        SimpleNamespace(
            item=SimpleNamespace(id=one["id"], label=one["label"]),
            match_probability=one["match_probability"],
            similarity=one["similarity"],
        )
        for one in ANSWER["results"]
    ]
    of_library = SimpleNamespace(matches=matches, decision=SimpleNamespace(verdict="ambiguous"))
    texts = [
        [text.get_text() for text in plots.results(one, picture, ax=Figure().add_subplot()).texts]
        for one in (ANSWER, of_library)
    ]
    assert texts[0] == texts[1] == ["owl\n> 99.9%", "\\$x_\n42.0%", "/1.webp\n3.0%"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda ax: plots.reliability("evaluation.json", ax=ax),
            "A str has no field 'reliability'. Give a",
        ),
        (lambda ax: plots.reliability([0.5, 0.6], [True], ax=ax), r"received \(2,\) and \(1,\)"),
        (lambda ax: plots.roc([0.5], [], ax=ax), "received 1 with a match and 0 absent"),
        (lambda ax: plots.gallery_map(np.zeros((2, 5)), ax=ax), r"received \(2, 5\)"),
        (lambda ax: plots.gallery_map(np.zeros((4, 5)), method="tsne", ax=ax), "'tsne'"),  # type: ignore[arg-type]
        (lambda ax: plots.degradation([1, 2], [1.0, 2.0], ax=ax), r"received \(2,\)"),
        (
            lambda ax: plots.posterior({"results": [{"similarity_std": None}]}, ax=ax),
            "gives no variance",
        ),
        (
            lambda ax: plots.uncertainties(SimpleNamespace(similarity_stds=None), ax=ax),
            "vouch-build calibrate",
        ),
    ],
)
def test_wrong_input_is_named_with_what_is_wanted(
    draw: Callable[[Axes], Axes], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw(Figure().add_subplot())


def test_map_uses_umap_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 4))

    class Umap:
        def __init__(self, random_state: int, n_neighbors: int) -> None:
            assert (random_state, n_neighbors) == (0, 15)

        def fit_transform(self, vectors: Any) -> Any:
            return vectors[:, :2] * 2

    monkeypatch.setitem(__import__("sys").modules, "umap", SimpleNamespace(UMAP=Umap))
    (drawn,) = plots.gallery_map(vectors, ax=Figure().add_subplot()).collections
    assert np.allclose(drawn.get_offsets(), vectors[:, :2] * 2)
    monkeypatch.setitem(__import__("sys").modules, "umap", None)
    with pytest.raises(ImportError, match="pip install umap-learn"):
        plots.gallery_map(vectors, method="umap", ax=Figure().add_subplot())
    plots.gallery_map(vectors, ax=Figure().add_subplot())


def test_svg_is_a_part_of_a_page_in_the_colours_of_its_text() -> None:
    text = plots.svg(DRAWINGS["risk_coverage"], "wrong & right")
    assert text == plots.svg(DRAWINGS["risk_coverage"], "wrong & right")
    assert 'role="img" aria-label="wrong &amp; right"' in text
    assert ET.fromstring(text).tag == "svg"
    assert "share of wrong results" in text
    assert "stroke: currentColor" in text
    assert "fill: currentColor" in text
    assert not re.search(r"#000000|#ffffff|<metadata|<style|http:", text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert all(re.fullmatch(r"[mp][0-9a-f]{10}", one) for one in ids), ids

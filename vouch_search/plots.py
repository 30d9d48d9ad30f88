"""Matplotlib plots of answers, galleries, calibrations and evaluations; needs the extra ``plots``.

=================  ==============================================================================
`reliability`      match probabilities against the share of correct results, with exact intervals
`risk_coverage`    wrong results among the answered queries, with the guaranteed point marked
`roc`              queries with a match against absent queries
`results`          the results of one answer as a strip of pictures with their probabilities
`posterior`        the similarity of a query to each of its results, as a distribution
`gallery_map`      the items of a gallery in two dimensions, with their uncertainty as size
`degradation`      uncertainty against the strength of a corruption
`uncertainties`    the uncertainty of queries in the distribution of the calibration queries
=================  ==============================================================================

Each function draws into ``ax`` and returns ``ax``; the default is pyplot's current axes.
`svg` returns a plot as an ``<svg>`` element for an HTML page.

A *source* is a local or remote gallery, the ``Calibration`` of a bundle, the calibration report of
a service, or an evaluation (the JSON object in ``evaluation.json``). Reports and evaluations may be
mappings or objects. `roc` and `uncertainties` need a local gallery, because a service does not
report single queries.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from model_store.decision.operating import exact_interval
from model_store.gallery_map import principal_axes
from model_store.installation import how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "degradation",
    "gallery_map",
    "posterior",
    "reliability",
    "results",
    "risk_coverage",
    "roc",
    "svg",
    "uncertainties",
]

CONFIDENCE = 0.95
"""Confidence level of the intervals around shares."""

N_NAMED = 9
"""Number of labels with a colour and a name on a map; items of other labels are grey."""

N_CURVES = 5
"""Number of results that `posterior` draws."""

ACCENT, GUIDE = "#9c2f4a", "#888888"
"""`ACCENT` is the colour of guaranteed points and of queries. `GUIDE` is the colour of diagonals
and limits."""

_INK = "#010203"
"""Placeholder colour; `svg` replaces it by the text colour of the page."""

_SIDE = 160
"""Width and height of a picture in a strip, in pixels."""

_LONGEST_NAME = 18
"""Maximum length of a label below a picture; longer labels show their end."""

Floats = NDArray[np.float64]
Picture = Any
"""A path, bytes, a Pillow image or an array (H, W, 3)."""


def reliability(
    source: object,
    outcomes: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of correct first results against their match probability.

    If the probabilities are calibrated, the points lie on the diagonal. Bars are exact 95 %
    intervals (Clopper & Pearson 1934); they assume independent queries. Larger points have more
    weight.

    Parameters
    ----------
    source : a source (see the module), or probabilities (N,) in [0, 1].
    outcomes : (N,) whether each result is correct, if ``source`` is probabilities.
    weights : (N,) weights of the results; if None, all weights are equal.
    """
    ax = _axes(ax)
    if outcomes is None:
        bins = [
            tuple(float(_field(one, name)) for name in ("n", "probability", "share", "weight"))
            for one in _field(_record(source), "reliability")
        ]
    else:
        from index_builder.metrics import reliability as in_bins  # noqa: PLC0415 - slow

        values, right = _arrays(source, outcomes)
        bins = [
            (one.n, one.probability, one.share, one.weight)
            for one in in_bins(
                values,
                right > 0,
                weights=None if weights is None else np.asarray(weights, dtype=np.float64),
            )
        ]
    ax.plot([0, 1], [0, 1], "--", color=GUIDE, linewidth=1, zorder=1)
    if bins:
        n, probability, share, weight = np.array(bins).T
        low, high = np.array(
            [exact_interval(*of, CONFIDENCE) for of in zip(share, n, strict=True)]
        ).T
        ax.errorbar(probability, share, (share - low, high - share), fmt="none", linewidth=1)
        ax.scatter(probability, share, 12 + 250 * weight, zorder=3)
        error = float(weight @ abs(share - probability))
        text = f"calibration error {error:.3f}\n{int(n.sum()):,} queries"
        ax.text(0.97, 0.04, text, transform=ax.transAxes, ha="right", va="bottom", fontsize="small")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.set(xlabel="match probability of the first result", ylabel="share that is right")
    return ax


def risk_coverage(
    source: object,
    outcomes: ArrayLike | None = None,
    *,
    label: str = "wrong among the answered",
    ax: Axes | None = None,
) -> Axes:
    """Draw the share of wrong results against the share of answered queries (risk–coverage).

    The queries are answered in the order of their probabilities, the highest first. The shaded band
    ends at the upper confidence bound, if the source has one. The marked point is the error of the
    verdict ``match``; a bar connects this point to the guaranteed bound. The dashed line is the
    gallery's maximum error.

    Parameters
    ----------
    source : a source (see the module), or probabilities (N,) of first results.
    outcomes : (N,) whether each first result is correct, if ``source`` is probabilities.
    label : the name of the curve in the legend.
    """
    ax = _axes(ax)
    point, limit = None, None
    if outcomes is None:
        record = _record(source)
        curve = [_rates(one) for one in _field(record, "risk_coverage")]
        point, limit = _field(record, "point", None), _field(record, "max_error", None)
        coverage, error, bound = np.array(curve).reshape(-1, 3).T
    else:
        from index_builder.metrics import risk_coverage as curve_of  # noqa: PLC0415 - slow

        values, right = _arrays(source, outcomes)
        coverage, error = curve_of(-values, right > 0)
        bound = np.full(len(error), np.nan)
    (line,) = ax.plot(coverage, error, label=_plain(label))
    if np.isfinite(bound).any():
        ax.fill_between(coverage, error, bound, alpha=0.15, color=line.get_color(), linewidth=0)
    if limit is not None:
        ax.axhline(limit, linestyle="--", color=GUIDE, linewidth=1, label=f"accepted: {limit:.1%}")
    if point is not None:
        at, seen, guaranteed = _rates(point)
        name = f"match: {at:.0%} of queries"
        if math.isfinite(guaranteed):
            ax.plot([at, at], [seen, guaranteed], color=ACCENT, marker="_", linewidth=1.5)
            name += f", error ≤ {guaranteed:.1%}"
        ax.plot([at], [seen], "o", color=ACCENT, label=name)
    tops = [error.max(initial=0), *(value for value in (limit,) if value is not None)]
    if point is not None:
        tops += [value for value in _rates(point)[1:] if math.isfinite(value)]
    ax.set(xlim=(0, 1.02), ylim=(0, min(1.0, 1.15 * float(max(tops)) or 0.1)))
    ax.set(xlabel="share of queries that are answered", ylabel="share of wrong results")
    ax.legend(fontsize="small", loc="upper left")
    return ax


def roc(
    source: object,
    absent: ArrayLike | None = None,
    *,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the ROC curve that separates queries with a match from absent queries.

    A second call with the same axes adds a curve. The legend shows the area under each curve.

    Parameters
    ----------
    source : a gallery or a ``Calibration``, or scores (N,) of queries with a match. For a gallery
        or a ``Calibration``, a score is the probability that the gallery has a match for the query.
        A larger score means that a match is more likely.
    absent : (M,) scores of absent queries, if ``source`` contains scores.
    label : the name of the curve in the legend.
    """
    from index_builder.metrics import auroc  # noqa: PLC0415 - slow
    from index_builder.metrics import roc as curve_of  # noqa: PLC0415 - slow

    ax = _axes(ax)
    if absent is None:
        evidence = _field(_calibration(source), "evidence")
        likely = 1 - np.asarray(evidence.no_match_probabilities, dtype=np.float64)
        present, others = likely[~evidence.absent], likely[evidence.absent]
        label = label or "match probability"
    else:
        present = np.asarray(source, dtype=np.float64).ravel()
        others = np.asarray(absent, dtype=np.float64).ravel()
    if not len(present) or not len(others):
        raise ValueError(
            f"An ROC curve needs queries with a match and absent queries; received {len(present)} "
            f"with a match and {len(others)} absent ones. Withhold labels at calibration, or pass "
            "scores of absent queries."
        )
    false_rates, true_rates = curve_of(present, others)
    area = auroc(present, others)
    name = f"AUROC {area:.3f}" if label is None else f"{_plain(label)}: AUROC {area:.3f}"
    if not ax.lines:
        ax.plot([0, 1], [0, 1], "--", color=GUIDE, linewidth=1)
    ax.plot(false_rates, true_rates, label=name)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.set(xlabel="absent queries taken for a match", ylabel="queries with a match found")
    ax.legend(fontsize="small", loc="lower right")
    return ax


def results(
    answer: object,
    picture_of: Callable[[str], Picture] | Mapping[str, Picture] | None = None,
    *,
    query: Picture | None = None,
    limit: int = 6,
    ax: Axes | None = None,
) -> Axes:
    """Draw the first results as a strip of pictures, each with its label and match probability.

    Parameters
    ----------
    answer : an answer whose results have ``id``, ``label`` and ``match_probability``.
    picture_of : the picture of an item by its id: a path, bytes, a Pillow image or an array
        (H, W, 3). If None, the thumbnails in the answer are used; only answers of `vouch_search`
        have thumbnails.
    query : the query's picture, drawn before the results; None to leave it out.
    limit : maximum number of results.
    """
    ax = _axes(ax)
    shown = _results(answer)[:limit]
    look_up = _looking_up(answer, picture_of)
    tiles = [(look_up(str(_of_item(one, "id"))), _caption(one), "") for one in shown]
    if query is not None:
        verdict = _field(answer, "verdict", None) or _field(answer, "decision.verdict", "")
        tiles.insert(0, (query, f"query\n{str(verdict).replace('_', ' ')}", ACCENT))
    for place, (picture, caption, edge) in enumerate(tiles):
        pixels = _square(picture)
        ax.imshow(pixels, extent=(place + 0.04, place + 0.96, 0, 0.92), interpolation="antialiased")
        if edge:
            frame = [place + 0.04, place + 0.96, place + 0.96, place + 0.04, place + 0.04]
            ax.plot(frame, [0, 0, 0.92, 0.92, 0], color=edge, linewidth=2)
        ax.text(place + 0.5, -0.06, caption, ha="center", va="top", fontsize="small")
    ax.set(xlim=(0, max(len(tiles), 1)), ylim=(-0.45, 0.96), aspect="equal")
    ax.set_axis_off()
    return ax


def posterior(answer: object, *, limit: int = N_CURVES, ax: Axes | None = None) -> Axes:
    """Draw a curve for each of the first results: the distribution of its similarity to the query.

    Query and item are both uncertain. Each curve is a normal density with the similarity's mean and
    standard deviation. If two curves overlap, the order of the two results is uncertain.

    Parameters
    ----------
    answer : an answer whose results have ``similarity`` and ``similarity_std``.
    limit : maximum number of results.

    Raises
    ------
    ValueError : the encoder gives no variance.
    """
    ax = _axes(ax)
    shown = _results(answer)[:limit]
    stds = [_field(one, "similarity_std") for one in shown]
    if not shown or any(std is None for std in stds):
        raise ValueError(
            "The answer has no `similarity_std`, because the encoder gives no variance. Build the "
            "gallery with an encoder that has a posterior, as `vouch-build all` does."
        )
    for rank, (one, std) in enumerate(zip(shown, stds, strict=True), 1):
        mean = float(_field(one, "similarity"))
        spread = max(float(std), 1e-6)
        x = np.linspace(mean - 4 * spread, mean + 4 * spread, 201)
        density = np.exp(-0.5 * ((x - mean) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
        (line,) = ax.plot(x, density, label=f"{rank}. {_name(one)}")
        ax.fill_between(x, density, alpha=0.12, color=line.get_color(), linewidth=0)
    ax.set(xlabel="similarity to the query", ylabel="density", ylim=(0, None))
    ax.legend(fontsize="small")
    return ax


def gallery_map(
    embeddings: object,
    uncertainties: ArrayLike | None = None,
    labels: Sequence[str] | None = None,
    *,
    method: Literal["auto", "pca", "umap"] = "auto",
    ax: Axes | None = None,
) -> Axes:
    """Draw items in two dimensions, with a colour for each label; uncertain items are larger.

    Parameters
    ----------
    embeddings : a gallery, of `vouch_search` or `model_store`; or the embeddings of items (n, D).
    uncertainties : (n,), for example the items' total variances; if None, all sizes are equal.
    labels : (n,) labels; the `N_NAMED` most frequent labels get a colour. If None, all items
        get the same colour.
    method : ``umap`` needs umap-learn; ``pca`` is linear; ``auto`` is UMAP if it is installed.
    """
    ax = _axes(ax)
    embeddings = getattr(getattr(embeddings, "_bundle", None), "retriever", embeddings)
    embeddings = getattr(embeddings, "gallery", embeddings)
    if callable(getattr(embeddings, "directions", None)):
        gallery: Any = embeddings
        rows = np.arange(gallery.n_rows)
        embeddings, uncertainties = gallery.directions(rows), gallery.total_variances(rows)
        labels = [one.label or "" for one in gallery.items(rows)]
    vectors = np.asarray(embeddings, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) < 3:
        raise ValueError(
            f"A map needs the embeddings of at least 3 items, (n, D); received {vectors.shape}."
        )
    x, y = _in_two_dimensions(vectors, method).T
    sizes = np.full(len(vectors), 16.0)
    if uncertainties is not None:
        of_items = np.asarray(uncertainties, dtype=np.float64)
        low, high = np.quantile(of_items, (0.05, 0.95))
        sizes = 6 + 60 * np.clip((of_items - low) / ((high - low) or 1), 0, 1)
    names = np.array([""] * len(vectors) if labels is None else list(labels))
    known, counts = np.unique(names[names != ""], return_counts=True)
    named = known[np.argsort(-counts, kind="stable")][:N_NAMED]
    rest = ~np.isin(names, named)
    if rest.any():
        grey = GUIDE if labels is not None else None
        ax.scatter(x[rest], y[rest], sizes[rest], color=grey, alpha=0.4, linewidth=0)
    for name, number in zip(named, (0, 1, 2, 3, 4, 5, 6, 8, 9), strict=False):
        rows, colour = names == name, f"C{number}"
        ax.scatter(x[rows], y[rows], sizes[rows], color=colour, alpha=0.65, linewidth=0)
        ax.scatter([], [], 24, color=colour, label=_plain(name))
    if len(named):
        ax.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))
    ax.set(xticks=[], yticks=[])
    if uncertainties is not None:
        ax.set_xlabel("larger: more uncertain")
    return ax


def degradation(
    levels: ArrayLike,
    uncertainties: ArrayLike,
    *,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how the uncertainty of queries changes with the strength of a corruption.

    The line is the median; the band holds the middle half of the queries.

    Parameters
    ----------
    levels : (k,) strengths, in the unit of the corruption.
    uncertainties : (k, n) uncertainties of n queries at each strength.
    label : the name of the corruption in the legend.
    """
    ax = _axes(ax)
    x, values = np.asarray(levels, dtype=np.float64), np.asarray(uncertainties, dtype=np.float64)
    if values.ndim != 2 or len(x) != len(values):
        raise ValueError(
            f"uncertainties must be (k, n), with k = {len(x)} levels; received {values.shape}."
        )
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
    (line,) = ax.plot(x, middle, "o-", markersize=4, label=label)
    ax.fill_between(x, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    ax.set(xlabel="strength of the corruption", ylabel="uncertainty", ylim=(0, None))
    if label is not None:
        ax.legend(fontsize="small", loc="upper left")
    return ax


def uncertainties(
    source: object,
    queries: ArrayLike = (),
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the distribution of the calibration queries' uncertainty, and mark given queries in it.

    Parameters
    ----------
    source : a gallery or a ``Calibration``; or the uncertainties of the calibration queries (N,).
    queries : uncertainties of queries, each marked with its percentile.
    """
    ax = _axes(ax)
    source = _calibration(source)
    known = getattr(source, "similarity_stds", source)
    if known is None:
        raise ValueError(
            "The bundle was calibrated by a release that did not keep uncertainties. Run "
            "`vouch-build calibrate` on it."
        )
    values = np.sort(np.asarray(known, dtype=np.float64))
    ax.hist(values, bins=30, density=True, alpha=0.5, label="calibration queries")
    for number, value in enumerate(np.atleast_1d(np.asarray(queries, dtype=np.float64))):
        percentile = 100 * np.searchsorted(values, value) / len(values)
        ax.axvline(value, color=ACCENT, linewidth=1.5, linestyle=("-", "--", ":", "-.")[number % 4],
                   label=f"query: more uncertain than {percentile:.0f} %")  # fmt: skip
    ax.set(xlabel="uncertainty", ylabel="density")
    ax.legend(fontsize="small")
    return ax


def svg(
    draw: Callable[[Axes], object], description: str, *, width: float = 4.6, height: float = 3.4
) -> str:
    """Return the plot of ``draw`` as an ``<svg>`` element for an HTML page.

    The element uses the text colour of the page. It has no background, and its ids
    cannot collide with ids of the page.

    Parameters
    ----------
    draw : a function that draws into the given axes.
    description : text alternative for screen readers.
    width, height : inches.
    """
    with _style():
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot(facecolor="none"))
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
    text = re.sub(r"<(metadata|style).*?</\1>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(
        r'<g id="(?:figure|axes|patch|matplotlib|text|xtick|ytick|line2d|legend)[^"]*"', "<g", text
    )
    return text.replace(_INK, "currentColor")


def _style() -> AbstractContextManager[None]:
    """Return the matplotlib style that `svg` uses: text stays text, in the placeholder colour."""
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError(f"Plots need matplotlib. {how_to_install('plots')}") from error
    return rc_context(
        {
            "text.color": _INK,
            "axes.edgecolor": _INK,
            "axes.labelcolor": _INK,
            "xtick.color": _INK,
            "ytick.color": _INK,
            "svg.fonttype": "none",
            "svg.hashsalt": "vouch",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
    )


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError(f"Plots need matplotlib. {how_to_install('plots')}") from error
    return plt.gca()


_REQUIRED = object()


def _field(record: object, name: str, default: object = _REQUIRED) -> Any:  # noqa: ANN401
    """Return a field of a mapping or an object; a dotted name reads a nested field."""
    value: Any = record
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, _REQUIRED)
        else:
            value = getattr(value, part, _REQUIRED)
        if value is _REQUIRED:
            if default is _REQUIRED:
                raise TypeError(
                    f"A {type(record).__name__} has no field {name!r}. Give a calibration, a "
                    "calibration report, an evaluation, an answer, or arrays; the function's "
                    "documentation lists the accepted sources."
                )
            return default
    return value


def _calibration(source: object) -> object:
    """Return the calibration or the calibration report of a gallery; other sources are unchanged.

    Raises
    ------
    ValueError : the gallery is not calibrated.
    """
    bundle, client = getattr(source, "_bundle", None), getattr(source, "_client", None)
    if client is not None:
        report: object = client.calibration(_field(source, "name"))
        return report
    if bundle is None:
        return source
    if bundle.retriever.calibration is None:
        raise ValueError(
            f"The gallery {bundle.name!r} is not calibrated. Build the gallery with "
            "labels, or run `vouch-build calibrate`."
        )
    return bundle.retriever.calibration


def _record(source: object) -> object:
    """Return the part of a source that has the reliability bins and the risk–coverage curve."""
    source = _calibration(source)
    if callable(getattr(source, "promises", None)):
        calibration: Any = source
        promises = calibration.promises()
        return {
            "reliability": calibration.report["cross_fitted"]["reliability"],
            "risk_coverage": promises.curve(),
            "point": promises.point if promises.gives_matches else None,
            "max_error": calibration.max_error,
        }
    return _field(source, "stream", source)


def _rates(point: object) -> tuple[float, float, float]:
    """Return coverage, error and error bound of a point; NaN for a missing bound."""
    if isinstance(point, Sequence):
        coverage, error = point
        return float(coverage), float(error), math.nan
    bound = _field(point, "error_bound", None)
    return (
        float(_field(point, "coverage")),
        float(_field(point, "error")),
        math.nan if bound is None else float(bound),
    )


def _arrays(values: object, outcomes: ArrayLike) -> tuple[Floats, Floats]:
    found, right = np.asarray(values, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    if found.ndim != 1 or found.shape != right.shape:
        raise ValueError(
            "probabilities and outcomes must be two arrays (N,) of the same length; received "
            f"{found.shape} and {right.shape}."
        )
    return found, right


def _results(answer: object) -> Sequence[object]:
    found: Sequence[object] | None = _field(answer, "results", None)
    return _field(answer, "matches") if found is None else found


def _of_item(result: object, name: str) -> object:
    """Return a field of a result, or of its item if the answer comes from `model_store`."""
    value = _field(result, name, None)
    return _field(result, f"item.{name}", None) if value is None else value


def _looking_up(
    answer: object, picture_of: Callable[[str], Picture] | Mapping[str, Picture] | None
) -> Callable[[str], Picture]:
    if isinstance(picture_of, Mapping):
        return picture_of.__getitem__
    if picture_of is not None:
        return picture_of
    thumbnail_of = getattr(answer, "_picture_of", None)
    if thumbnail_of is None:
        raise TypeError(
            f"A {type(answer).__name__} has no pictures of results. Give picture_of: a "
            "function or a mapping that returns the picture of an item by its id."
        )

    def thumbnail(item_id: str) -> Picture:
        found = thumbnail_of(item_id)
        if found is None:
            raise ValueError(
                f"The item {item_id!r} has no thumbnail, because the gallery was built from "
                "vectors. Give picture_of."
            )
        return found[0]

    return thumbnail


def _name(result: object) -> str:
    name = str(_of_item(result, "label") or _of_item(result, "id"))
    return _plain(name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}")


def _caption(result: object) -> str:
    name = _name(result)
    probability = _field(result, "match_probability", None)
    if probability is None:
        return f"{name}\nsimilarity {_field(result, 'similarity'):.3f}"
    return f"{name}\n{probability:.1%}" if probability < 0.9995 else f"{name}\n> 99.9%"


def _plain(name: str) -> str:
    """Escape ``$``, which starts a formula, and a leading underscore, which hides the name."""
    return name.replace("$", r"\$").replace("_", " _", 1 if name.startswith("_") else 0)


def _square(picture: Picture) -> NDArray[np.uint8]:
    """Return a picture as square pixels (H, H, 3) with white margins."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - slow

    if isinstance(picture, np.ndarray):
        image = Image.fromarray(picture)
    elif isinstance(picture, Image.Image):
        image = picture
    else:
        image = Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture)
    image = ImageOps.exif_transpose(image).convert("RGB")
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return np.asarray(ImageOps.pad(image, (_SIDE, _SIDE), color="white"))


def _in_two_dimensions(vectors: Floats, method: str) -> Floats:
    """Project vectors (n, D) to map coordinates (n, 2)."""
    if method not in {"auto", "pca", "umap"}:
        raise ValueError(f"method must be 'auto', 'pca' or 'umap'; received {method!r}.")
    if method != "pca":
        try:
            from umap import UMAP  # noqa: PLC0415 - not an extra: it brings numba
        except ImportError:
            if method == "umap":
                raise ImportError(
                    "method='umap' needs umap-learn: pip install umap-learn. Or give method='pca'."
                ) from None
        else:
            n_neighbours = min(15, len(vectors) - 1)
            found: Floats = UMAP(random_state=0, n_neighbors=n_neighbours).fit_transform(vectors)
            return found
    axes, _ = principal_axes(vectors.astype(np.float64))
    places: Floats = (vectors - vectors.mean(axis=0)) @ axes.T
    return places

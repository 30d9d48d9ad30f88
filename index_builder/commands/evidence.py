"""``vouch-build calibrate`` and ``evaluate``: of a configuration's run, or of any bundle."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from index_builder.commands.index_options import PROMISES, promise
from index_builder.commands.options_class import with_options
from index_builder.commands.steps import RunOption, opened_run, print_report, step_of
from index_builder.output import writing
from index_builder.progress import console
from model_store.errors import ConfigError

if TYPE_CHECKING:
    from index_builder.indexing.bundle_evidence import Evidence

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", help="Instead of BUNDLES: a step of this configuration."),
]
BundlesArgument = Annotated[
    Path | None, typer.Argument(help="A directory of bundles; its current one is meant.")
]
QueriesOption = Annotated[
    str | None,
    typer.Option(
        "--queries",
        "--vectors",
        help="With BUNDLES: images as `index` takes them; of a gallery of vectors, vectors. A "
        "manifest's column `item` names the item that a query shows, or `label` its label; with "
        "neither it matches nothing. Columns `group` and `source` as for `index`.",
    ),
]
ItemsOption = Annotated[
    Path | None, typer.Option(help="Of a table of vectors: a manifest, a line for each row.")
]


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Every option of ``calibrate``, as it was given."""

    bundles: BundlesArgument = None
    queries: QueriesOption = None
    items: ItemsOption = None
    gallery: Annotated[
        str | None,
        typer.Option(
            help="What the gallery was made of, as `index` took it: needed where the bundle was "
            "never calibrated, or where every query has a match."
        ),
    ] = None
    gallery_items: ItemsOption = None
    captions: Annotated[
        Path | None,
        typer.Option(
            help="With BUNDLES, in place of --queries: a table (.csv, .jsonl, .parquet) with "
            "`text`, and `id` of the item or `label` that it is about, neither where it is about "
            "nothing in the gallery; maybe `group`, `source`. Calibrates searches in words alone."
        ),
    ] = None
    max_error: Annotated[float | None, promise("max_error", "")] = None
    max_false_match_rate: Annotated[float | None, promise("max_false_match_rate", "")] = None
    expected_absent: Annotated[float | None, promise("expected_absent", "")] = None
    alpha: Annotated[float | None, promise("alpha", "")] = None
    coverage: Annotated[float | None, promise("coverage", "")] = None
    config: ConfigOption = None
    run: RunOption = None
    feedback: Annotated[
        Path | None,
        typer.Option(
            help="With BUNDLES alone, --config or --captions: the file that the service kept "
            "feedback in; corrects probabilities."
        ),
    ] = None


@with_options(CalibrateOptions)
def calibrate_command(options: CalibrateOptions) -> None:
    """Fit the decision layer: of a configuration, as a step; or of a bundle, to one's own queries.

    The bundle may come from anywhere. What is published is a new one with the same gallery, its
    live changes taken in; promises that are not named stay as they were. With BUNDLES alone it is
    fitted again, to the gallery as it is by now, from the queries that the bundle keeps.
    """
    promises = {name: getattr(options, name) for name in PROMISES}
    named = {name: value for name, value in promises.items() if value is not None}
    if options.captions is not None:
        _calibrate_texts(options, options.captions, named)
        return
    evidence = (options.queries, options.items, options.gallery, options.gallery_items)
    if options.bundles is not None and not any((*evidence, options.config)):
        from index_builder.indexing import recalibrate  # noqa: PLC0415 - slow

        if options.feedback is None:
            print(recalibrate.recalibrate_bundle(options.bundles, named))
        elif named:
            raise ConfigError("--feedback corrects probabilities; give promises without it.")
        else:
            print(recalibrate.correct_bundle(options.bundles, options.feedback))
        return
    others = (*evidence[1:], *named)
    if _of_configuration(options.bundles, options.queries, options.config, others):
        step_of("calibrate_step")(*opened_run(str(options.config), options.run), options.feedback)
        return
    if options.feedback is not None:
        raise ConfigError("--feedback corrects what was calibrated: give it without --queries.")
    assert options.bundles is not None  # noqa: S101 - or it is of a configuration
    found = _evidence(options.queries, options.items, options.gallery, options.gallery_items)
    print(_module().calibrate_bundle(options.bundles, found, named))


def _calibrate_texts(
    options: CalibrateOptions, captions: Path, promises: Mapping[str, float]
) -> None:
    """Calibrate searches in words, and print what came of it."""
    of_images = (options.queries, options.items, options.gallery, options.gallery_items)
    if options.bundles is None or options.config or options.run or any(of_images):
        raise ConfigError("--captions goes with BUNDLES, and calibrates searches in words alone.")
    from index_builder.indexing.text_evidence import (  # noqa: PLC0415 - slow
        calibrate_bundle_texts,
    )

    bundle, calibration = calibrate_bundle_texts(
        options.bundles, captions, promises, feedback=options.feedback
    )
    measured = calibration.report["cross_fitted"]
    table = Table("searches in words", "cross-fitted")
    table.add_row("captions", str(calibration.report["n_matched"]))
    for name in ("recall_at_1", "top1_ece", "error_auroc", "absent_auroc", "match_coverage"):
        found = measured[name]
        table.add_row(name.replace("_", " "), "not defined" if found is None else f"{found:.4f}")
    console.print(table)
    print(bundle)


def evaluate_command(
    bundles: BundlesArgument = None,
    queries: QueriesOption = None,
    items: ItemsOption = None,
    out: Annotated[
        Path | None, typer.Option(help="With BUNDLES: a JSON file to write it to as well.")
    ] = None,
    config: ConfigOption = None,
    run: RunOption = None,
) -> None:
    """Measure a bundle as it will be served: of a configuration, or with one's own queries.

    Queries that a bundle was calibrated with say nothing about it: bring others.
    """
    if _of_configuration(bundles, queries, config, (items, out)):
        print_report(step_of("evaluate_step")(*opened_run(str(config), run)))
        return
    report = _module().evaluate_bundle(bundles, _evidence(queries, items))
    print_report(report)
    if out is not None:
        with writing(str(out)):
            out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _of_configuration(
    bundles: Path | None, queries: str | None, config: str | None, others: tuple[object, ...]
) -> bool:
    """Return whether a step of a configuration is meant.

    Raises
    ------
    ConfigError : neither is, or both.
    """
    given = bundles is not None, queries is not None, config is not None
    if given == (False, False, True) and not any(others):
        return True
    if given == (True, True, False):
        return False
    raise ConfigError(
        "Give either BUNDLES, with --queries or without, or --config, whose file says everything "
        "else."
    )


def _evidence(
    queries: str | None,
    items: Path | None,
    gallery: str | None = None,
    gallery_items: Path | None = None,
) -> Evidence:
    assert queries is not None  # noqa: S101 - or it is of a configuration
    found: Evidence = _module().Evidence(queries, items, gallery, gallery_items)
    return found


def _module() -> Any:  # noqa: ANN401 - imported late: --help needs none of it
    return importlib.import_module("index_builder.indexing.bundle_evidence")

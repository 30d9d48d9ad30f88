"""``vouch-build calibrate``, ``evaluate``, ``compare`` and ``unknown``; all read queries."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field
from rich.table import Table

from index_builder.commands.command_line import PROMISES, Options, given_options, with_options
from index_builder.commands.index import (
    LevelsOption,
    ParentsOption,
    PromiseOptions,
    named_parents,
)
from index_builder.commands.outcome import JsonOption, OutcomeReport, RequireOption
from index_builder.commands.steps import RunOption, opened_run, step_of
from index_builder.configuration.build import load_config, parse_promises
from index_builder.output import CALIBRATION_TABLE, write_output, write_table
from index_builder.pipeline.run import EVALUATION_TABLE
from index_builder.progress import console, timed_step, working
from model_store.bundles.directory import locate
from model_store.errors import UsageError

if TYPE_CHECKING:
    from index_builder.indexing.assemble import Check
    from model_store.decision import Calibration
    from model_store.records import GalleryOutcome

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        help="Instead of BUNDLES: a configuration of a build. The "
        "command runs as a step of this build.",
    ),
]
BundlesArgument = Annotated[
    Path | None, typer.Argument(help="A directory of bundles; the command uses its current bundle.")
]
QueriesOption = Annotated[
    str | None,
    typer.Option(
        "--queries",
        "--vectors",
        help="With BUNDLES: a source of query images, as for `index`. For a gallery of vectors, a "
        "table of vectors. In a manifest, the column `item` has the id of the item that a "
        "query shows, or the column `label` has the query's label. A query without item and "
        "label has no match. The columns `group` and `source` are as for `index`.",
    ),
]
ItemsOption = Annotated[
    Path | None,
    typer.Option(
        help="For a table of vectors: a manifest with one line for each row of the table."
    ),
]

WithinOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Maximum distance from a query to a match, in metres. Queries and items need columns "
        "or metadata fields `latitude` and `longitude` (WGS84, degrees). Labels then have no "
        "effect. The bundle keeps this value.",
    ),
]


_OF_QUERIES = "items", "gallery", "gallery_items"
_OF_LABELS = "parents", "levels", "within"


class CalibrateOptions(PromiseOptions):
    """Options of ``calibrate``."""

    bundles: BundlesArgument = None
    queries: QueriesOption = None
    items: ItemsOption = None
    gallery: str | None = None
    """With --queries: the source that the gallery was indexed from. This option is needed if the
    bundle was never calibrated, or if fewer than 50 queries have no match."""
    gallery_items: ItemsOption = None
    captions: Path | None = None
    """With BUNDLES, instead of --queries: a table of texts (.csv, .jsonl, .parquet), to calibrate
    only text queries. Columns: `text`; the `id` of the item or the `label` that the text describes;
    optionally `group` and `source`. A text without id and label has no match."""
    parents: ParentsOption = None
    levels: LevelsOption = None
    within: WithinOption = None
    config: ConfigOption = None
    run: RunOption = None
    feedback: Path | None = None
    """Feedback file of the service, to correct match probabilities by users' decisions. Give this
    option with --config, with --captions, or with BUNDLES and no queries."""
    decisions: Path | None = None
    """With only BUNDLES: feedback file of the service. Once 200 randomly drawn queries with a match
    are reviewed, they bound the errors."""
    require: RequireOption = None
    as_json: JsonOption = False


@with_options(CalibrateOptions)
def calibrate_command(options: CalibrateOptions) -> None:
    """Calibrate a bundle with your own queries, or run the step of a build.

    The command publishes a new bundle with the same gallery and its live changes. Error bounds that
    are not given keep their values. With only BUNDLES, the current gallery is recalibrated with the
    queries stored in the bundle. If the gallery was created empty and never calibrated, its
    labelled items are the queries; the encoder must not have been trained on them.
    """
    shown = OutcomeReport.of(options.require, options.as_json)
    shown.show(_calibrated(options, shown))


def _calibrated(options: CalibrateOptions, shown: OutcomeReport) -> Path | None:
    """Calibrate and return the published bundle; None for a step, which publishes no bundle."""
    if options.captions is not None:
        return _calibrate_texts(options, options.captions, options.promises, shown.check)
    parents = named_parents(options.parents, options.levels)
    elsewhere = _given(options, "queries", *_OF_QUERIES, "config")
    if options.bundles is not None and not elsewhere:
        return _calibrate_again(options, options.bundles, options.promises, shown.check)
    if options.decisions is not None:
        raise UsageError(
            "--decisions recalibrates BUNDLES with its stored queries. "
            + (f"Remove {elsewhere}, or --decisions." if elsewhere else "Name BUNDLES.")
        )
    if options.gallery_items is not None and options.gallery is None:
        raise UsageError("--gallery-items needs --gallery, a table of vectors.")
    others = _given(options, *_OF_QUERIES, *_OF_LABELS, *PROMISES)
    place = options.bundles, options.queries, options.config
    if _of_configuration("calibrate", *place, others, options.run):
        build = load_config(str(options.config))
        with opened_run(build, options.run) as opened:
            calibrate_step = step_of("calibrate_step")
            with timed_step("calibrate"):
                calibration = calibrate_step(build, opened, options.feedback)
            shown.table = opened.directory / CALIBRATION_TABLE
            shown.check(_outcome_of(calibration))
        return None
    if options.feedback is not None:
        raise UsageError(
            "--feedback corrects a calibration, but --queries make a new calibration. Give one of "
            "them."
        )
    assert options.bundles is not None  # noqa: S101 - or it is of a configuration
    with working("calibrating"):
        found = _module().EvidenceSource(
            *(options.queries, options.items, options.gallery, options.gallery_items),
            *(parents, options.within),
        )
        bundle: Path = _module().calibrate_bundle(
            options.bundles, found, options.promises, check=shown.check
        )
    return bundle


def _calibrate_again(
    options: CalibrateOptions, bundles: Path, promises: Mapping[str, float], check: Check
) -> Path:
    """Recalibrate a bundle with its stored queries, or correct it by feedback."""
    _refuse_run(options.run)
    of_labels = _given(options, *_OF_LABELS)
    if of_labels:
        raise UsageError(
            f"{of_labels} needs --queries, because it defines true matches of queries."
        )
    if options.feedback is not None and options.decisions is not None:
        raise UsageError(
            "--feedback corrects a calibration, but --decisions make a new calibration. Give one "
            "of them."
        )
    if options.feedback is not None and promises:
        raise UsageError(
            f"--feedback corrects probabilities, not error bounds. Remove "
            f"{given_options(promises)}, or calibrate without --feedback."
        )
    with working("calibrating"):
        from index_builder.indexing import recalibrate  # noqa: PLC0415 - slow

        if options.feedback is not None:
            return recalibrate.correct_bundle(bundles, options.feedback, check)
        return recalibrate.recalibrate_bundle(bundles, promises, options.decisions, check)


def _calibrate_texts(
    options: CalibrateOptions, captions: Path, promises: Mapping[str, float], check: Check
) -> Path:
    """Calibrate text queries."""
    of_images = _given(options, "queries", *_OF_QUERIES, *_OF_LABELS, "config", "run", "decisions")
    if options.bundles is None:
        raise UsageError("--captions needs BUNDLES, a directory of bundles.")
    if of_images:
        raise UsageError(f"--captions calibrates only text queries. Remove {of_images}.")
    with working("calibrating"):
        from index_builder.indexing.bundle_evidence import (  # noqa: PLC0415 - slow
            calibrate_bundle_texts,
        )

        return calibrate_bundle_texts(
            options.bundles, captions, promises, feedback=options.feedback, check=check
        )


def evaluate_command(
    bundles: BundlesArgument = None,
    queries: QueriesOption = None,
    items: ItemsOption = None,
    out: Annotated[
        Path | None, typer.Option(help="With BUNDLES: also write the report to this JSON file.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="With BUNDLES: also write an HTML page with pictures of errors."),
    ] = None,
    within: WithinOption = None,
    config: ConfigOption = None,
    run: RunOption = None,
    require: RequireOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a bundle on your own queries, or run the step of a build.

    Do not use the calibration queries: results on calibration queries are too optimistic.
    """
    shown = OutcomeReport.of(require, as_json, to_stdout=True)
    others = given_options({"items": items, "out": out, "page": page, "within": within})
    if _of_configuration("evaluate", bundles, queries, config, others, run):
        build = load_config(str(config))
        with opened_run(build, run) as opened:
            evaluate_step = step_of("evaluate_step")
            with timed_step("evaluate"):
                report = evaluate_step(build, opened)
        shown.table, directory = opened.directory / EVALUATION_TABLE, opened.staging
    else:
        assert bundles is not None  # noqa: S101 - or it is of a configuration
        with working("evaluating"):
            evidence = _module().EvidenceSource(queries, items, within=within)
            report, drawn = _module().evaluate_bundle(bundles, evidence, with_page=page is not None)
        _write(report, out, drawn, page)
        if out is not None:
            shown.table = out.with_suffix(".md")
            write_table(shown.table, f"Evaluation of {bundles}", report)
        directory = locate(bundles)
    from model_store.decision import Calibration  # noqa: PLC0415 - slow

    shown.check(_outcome_of(Calibration.load(directory), report))
    shown.show()


def _outcome_of(
    calibration: Calibration | None, evaluation: Mapping[str, Any] | None = None
) -> GalleryOutcome:
    from model_store.decision import outcome_of  # noqa: PLC0415 - slow

    return outcome_of(calibration, evaluation)


def compare_command(
    old: Annotated[
        Path, typer.Argument(help="A directory of bundles; the command uses its current bundle.")
    ],
    new: Annotated[
        Path,
        typer.Argument(
            help="Another directory of bundles; the command compares the current bundles of both "
            "directories."
        ),
    ],
    queries: Annotated[
        str,
        typer.Option(
            "--queries",
            "--vectors",
            help="Queries as for `evaluate`, without the calibration queries of either bundle.",
        ),
    ],
    items: ItemsOption = None,
    within: WithinOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the report to this JSON file.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write an HTML page, with pictures of changed answers.")
    ] = None,
) -> None:
    """Compare two bundles on the same queries: error bounds and changed answers.

    An answer is right if it names a true match. For an absent query, an answer is right if it names
    no match.
    """
    with working("comparing"):
        evidence = _module().EvidenceSource(queries, items, within=within)
        report, drawn = _module().compare_bundles((old, new), evidence, with_page=page is not None)
    table = Table("compared", "old", "new")
    for part in ("promised", "thresholds", "measured"):
        for name, values in report[part].items():
            cells = ("–" if value is None else f"{value:.4g}" for value in values)
            table.add_row(f"{part}: {name.replace('_', ' ')}", *cells)
    console.print(table)
    for kind, n in report["changes"].items():
        console.print(f"{kind}: {n} of {report['n_queries']} answers")
    _write(report, out, drawn, page)


def _write(report: dict[str, Any], out: Path | None, drawn: str | None, page: Path | None) -> None:
    """Write the report and the page, if requested."""
    for path, text in ((out, json.dumps(report, indent=1) + "\n"), (page, drawn)):
        if path is not None and text is not None:
            write_output(path, text)


def _of_configuration(
    command: str,
    bundles: Path | None,
    queries: str | None,
    config: str | None,
    others: str,
    run: Path | None,
) -> bool:
    """Return True for a step of a build, False for the user's own queries.

    Parameters
    ----------
    others : the given options that need the user's own queries.
    run : the given run directory, which needs a configuration.

    Raises
    ------
    UsageError : neither --config nor queries are given, or both are given; or a run directory is
        given without --config.
    """
    if config is None:
        if bundles is None:
            raise UsageError(f"{command} needs a directory of bundles and --queries, or --config.")
        if queries is None:
            raise UsageError(f"{command} needs --queries: images or vectors.")
        _refuse_run(run)
        return False
    named = ["BUNDLES"] * (bundles is not None) + ["--queries"] * (queries is not None)
    excluded = ", ".join([*named, *([others] if others else [])])
    if excluded:
        raise UsageError(
            f"--config runs a step of a configuration and takes no {excluded}. Remove --config or "
            "these options."
        )
    return True


def _refuse_run(run: Path | None) -> None:
    if run is not None:
        raise UsageError("--run is the run directory of a build, so it needs --config. Remove it.")


def _given(options: CalibrateOptions, *names: str) -> str:
    """Return the options among ``names`` that were given, as text; "" if none was given."""
    return given_options({name: getattr(options, name) for name in names})


def _module() -> Any:  # noqa: ANN401 - imported late: --help needs none of it
    return importlib.import_module("index_builder.indexing.bundle_evidence")


_N_SHOWN = 10


class UnknownOptions(Options):
    """Options of ``unknown``."""

    bundles: Annotated[
        Path, typer.Argument(help="A directory of bundles; the command uses its current bundle.")
    ]
    queries: Annotated[
        str,
        typer.Option(
            "--queries",
            "--vectors",
            help="Queries as for `evaluate`. The columns `item` and `label` of a manifest are "
            "ignored.",
        ),
    ]
    items: ItemsOption = None
    precision: float = Field(0.9, ge=0.5, le=1)
    """Minimum expected share of pairs that show one identity, among all pairs of a group's queries.
    """
    expected_absent: float | None = None
    """Assumed share of queries without a match. [default: the share that the bundle assumes]"""
    out: Path | None = None
    """Write the groups to this JSON file."""
    table: Path | None = None
    """Write the members of the groups to this CSV file."""
    page: Path | None = None
    """Write an HTML page of the groups, with pictures."""


@with_options(UnknownOptions)
def unknown_command(options: UnknownOptions) -> None:
    """Group queries without a match into probable new identities.

    The similarity of two images of one identity is learned from labels that the encoder was not
    trained on. At least four such labels must have two images each.
    """
    wanted = [
        path.absolute() for path in (options.out, options.table, options.page) if path is not None
    ]
    if len(set(wanted)) < len(wanted):
        raise UsageError("--out, --table and --page name the same file. Name a file for each.")
    if options.expected_absent is not None:
        parse_promises({"expected_absent": options.expected_absent})
    with working("grouping"):
        module = importlib.import_module("index_builder.indexing.unknown")  # slow
        evidence = module.EvidenceSource(options.queries, options.items)
        found = module.group_unknown(
            options.bundles, evidence, options.precision, options.expected_absent
        )
    report = found.report()
    shown = Table("group", "queries", "P(same)", "medoid")
    for group in report["groups"][:_N_SHOWN]:
        n = str(len(group["members"]))
        shown.add_row(group["id"], n, f"{group['p_same']:.3f}", group["medoid"])
    console.print(shown)
    console.print(
        f"{report['n_queries']:,} queries, {report['n_unknown']:,} match nothing: "
        f"{report['n_grouped']:,} of them in {len(report['groups']):,} groups"
    )
    contents = (
        (options.out, lambda: json.dumps(report, indent=1) + "\n"),
        (options.table, found.table),
        (options.page, found.page),
    )
    for path, written in contents:
        if path is not None:
            write_output(path, written())

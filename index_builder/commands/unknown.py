"""``vouch-build unknown``: groups queries that match nothing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from index_builder.commands.evidence import ItemsOption
from index_builder.configuration.build import parse_promises
from index_builder.output import writing
from index_builder.progress import console, working
from model_store.errors import UsageError

_N_SHOWN = 10


def unknown_command(
    bundles: Annotated[
        Path, typer.Argument(help="A directory of bundles; the command uses its current bundle.")
    ],
    queries: Annotated[
        str,
        typer.Option(
            "--queries",
            "--vectors",
            help="Queries as for `evaluate`. The columns `item` and `label` of a manifest are "
            "ignored.",
        ),
    ],
    items: ItemsOption = None,
    precision: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=1.0,
            help="Minimum expected share of pairs that show one identity, among all pairs of a "
            "group's queries.",
        ),
    ] = 0.9,
    expected_absent: Annotated[
        float | None,
        typer.Option(
            help="Assumed share of queries without a match. [default: the share that the bundle "
            "assumes]",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the groups to this JSON file.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="Write the members of the groups to this CSV file.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write an HTML page of the groups, with pictures.")
    ] = None,
) -> None:
    """Group queries without a match into probable new identities.

    The similarity of two images of one identity is learned from labels that the encoder was not
    trained on. At least four such labels must have two images each.
    """
    wanted = [path.absolute() for path in (out, table, page) if path is not None]
    if len(set(wanted)) < len(wanted):
        raise UsageError("--out, --table and --page name the same file. Name a file for each.")
    if expected_absent is not None:
        parse_promises({"expected_absent": expected_absent})
    with working("grouping"):
        module = importlib.import_module("index_builder.indexing.unknown")  # slow
        evidence = module.EvidenceSource(queries, items)
        found = module.group_unknown(bundles, evidence, precision, expected_absent)
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
        (out, lambda: json.dumps(report, indent=1) + "\n"),
        (table, found.table),
        (page, found.page),
    )
    for path, written in contents:
        if path is not None:
            with writing(str(path)):
                path.write_text(written(), encoding="utf-8")

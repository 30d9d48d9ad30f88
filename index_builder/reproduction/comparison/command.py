"""The command ``vouch-build reproduce --protocol objectives``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from index_builder.pipeline.run import write_json
from index_builder.reproduction.comparison.grid import DATA_SETS, Grid, objectives_named, run_grid
from index_builder.reproduction.comparison.table import markdown, summary_of, write_page
from model_store.errors import BuildError


def compare_objectives(
    objectives: str | None,
    n_seeds: int,
    directory: Path,
    *,
    weights: str | None = None,
    **options: Any,  # noqa: ANN401 - of `protocol_config`
) -> str:
    """Measure all cells (data set × objective × seed) without a result, and report all cells.

    Returns
    -------
    The tables in Markdown. The files table.md, report.json and report.html are written to
    ``directory``.

    Raises
    ------
    BuildError : a name is unknown, data are missing, or an encoder failed. All other encoders are
        reported.
    """
    named = objectives_named(objectives)
    grid = Grid(named, range(n_seeds), directory, options, DATA_SETS, weights)
    cells, failures = run_grid(grid)
    if not cells:
        raise BuildError(failures[0])
    summary = summary_of(cells, failures)
    write_json(directory / "report.json", summary)
    write_page(summary, directory / "report.html")
    tables = markdown(summary)
    (directory / "table.md").write_text(tables, encoding="utf-8")
    if failures:
        raise BuildError(
            f"{len(failures)} encoders could not be measured. The tables in {directory} have "
            f"all others. {'; '.join(failures)}"
        )
    return tables

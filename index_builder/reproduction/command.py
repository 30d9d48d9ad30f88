"""The command ``vouch-build reproduce``: measure, then write the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from index_builder.reproduction.cells import ExperimentPlan, methods_named, run_cells
from index_builder.reproduction.comparison import compare_objectives
from index_builder.reproduction.page import write_page
from index_builder.reproduction.protocols import PROTOCOLS, protocol_config
from index_builder.reproduction.stereo import measure_stereo
from index_builder.reproduction.summary import markdown, publish, report_of
from model_store.errors import BuildError, ConfigError

COMPARISONS: Mapping[str, Callable[..., str]] = {
    "objectives": compare_objectives,
    "stereo": measure_stereo,
}
"""Names for ``--protocol`` that are not in `PROTOCOLS`; each has its own function and table."""


def reproduce(
    protocol: str,
    methods: str,
    n_seeds: int,
    directory: Path,
    *,
    objective: str | None = None,
    weights: str | None = None,
    jobs: int = 1,
    **options: Any,  # noqa: ANN401 - of `protocol_config`
) -> str:
    """Measure all cells (method × seed) that have no result, and write a report of all cells.

    Parameters
    ----------
    protocol : a name in `PROTOCOLS` or `COMPARISONS`. For a comparison, the methods cannot be
        chosen.

    Returns
    -------
    The tables in Markdown. The files table.md, report.json and report.html are written to
    ``directory``.

    Raises
    ------
    BuildError : a name is unknown, data are missing, or a measurement failed. All other
        measurements are kept and reported.
    """
    if protocol in COMPARISONS:
        if methods != "all" or jobs != 1:
            raise ConfigError(
                f"--protocol {protocol} does not support --methods and --jobs. Remove them."
            )
        return COMPARISONS[protocol](objective, n_seeds, directory, weights=weights, **options)
    if protocol not in PROTOCOLS:
        names = ", ".join([*PROTOCOLS, *COMPARISONS])
        raise ConfigError(f"No protocol {protocol!r}. There are: {names}.")
    network = None if weights is None else {"weights": weights}
    base = protocol_config(protocol, objective=objective, network=network, **options)
    plan = ExperimentPlan(base, methods_named(methods), range(n_seeds), directory)
    cells, failures = run_cells(plan, jobs)
    if not cells:
        raise BuildError(failures[0].reason)
    report = report_of(plan, cells, failures)
    failed = [f"{one.method}, seed {one.seed}: {one.reason}" for one in failures]
    return publish(directory, report, markdown(report), write_page, failed, len(cells))

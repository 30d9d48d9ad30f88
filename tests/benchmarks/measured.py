"""Measurements as data: figures in ``docs/measured/NAME.json``, and the tables made from them.

`record_figures` writes the figures of a benchmark with machine, versions, date and sizes. The site
shows every file; ``make tables`` (``python -m tests.benchmarks.measured``) fills in the README's
table. Files whose ``source`` says so are transcribed from earlier reports: those runs take hours.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "measured"
README = ROOT / "README.md"
LIBRARIES = ("vouch-search", "numpy", "onnxruntime-gpu", "onnxruntime", "faiss-cpu", "torch")
MAX_LIST = 12
"""Longest list of numbers that is kept: longer ones are curves."""

_BLOCK = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.DOTALL)
_FIGURES = {
    "recall at 1": "{recall_at_1:.3f}",
    "expected calibration error of the first result": "{top1_ece:.3f}",
    "AUROC, first result wrong: match probability / similarity": (
        "{error_auroc/match_probability:.3f} / {error_auroc/similarity:.3f}"
    ),
    "AUROC, another kind of image: outlier score / similarity": (
        "{outlier_auroc/far/outlier_score:.3f} / {outlier_auroc/far/similarity:.3f}"
    ),
    "false alarms at α = 0.05": "{false_alarm_rate/0.05:.3f}",
}
"""The README's rows, from the figures of `vouch-build evaluate`."""
_COLUMNS = {"Fashion-MNIST": "build-fashion-mnist", "digits": "build-digits"}


def record_figures(
    name: str, found: Mapping[str, Any], module: Mapping[str, Any], command: str = ""
) -> Path:
    """Write the figures of a benchmark.

    Parameters
    ----------
    name : of the file, and of ``make bench NAME=…``.
    found : numbers and texts, nested at will.
    module : the benchmark's ``globals()``. The first line of its docstring is the title; its
        constants are the sizes.
    command : that measures it; ``make bench NAME=…`` with its name if empty.
    """
    return _record(name, module, command, {"numbers": dict(_flat(found))})


def record_table(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    module: Mapping[str, Any],
    command: str = "",
    about: str = "",
) -> Path:
    """Write a benchmark's table.

    Parameters
    ----------
    columns, rows : cells, in Markdown.
    about : a sentence above the table.
    """
    table = {"about": about, "columns": list(columns), "rows": [list(row) for row in rows]}
    return _record(name, module, command, table)


def mean_rows(
    titles: Mapping[str, str], results: Mapping[str, Sequence[Mapping[str, float | None]]]
) -> list[list[str]]:
    """Return rows of a table: mean ± standard deviation of each number; – where there is none.

    Parameters
    ----------
    titles : the row's title of each number.
    results : records of each column, one of each seed.
    """
    rows = []
    for key, title in titles.items():
        cells = []
        for records in results.values():
            values = [value for one in records if (value := one.get(key)) is not None]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "–")
        rows.append([title, *cells])
    return rows


def _record(name: str, module: Mapping[str, Any], command: str, found: Mapping[str, Any]) -> Path:
    title = str(module["__doc__"]).strip().partition("\n")[0].rstrip(".")
    document = {
        "title": re.sub(r"^``make [^`]+``: ", "", title),
        "command": command or f"make bench NAME={name}",
        "source": "a run of this command",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "sizes": {
            key.lower(): value
            for key, value in module.items()
            if key.isupper() and isinstance(value, int | float)
        },
        **found,
    }
    path = MEASURED / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def machine() -> str:
    """Return the processor, the number of usable cores, and the load average at the time."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text("utf-8").splitlines() if cpu.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{(names or [platform.processor()])[0]}, {cores} cores, load average {load}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that figures depend on."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def documents() -> dict[str, dict[str, Any]]:
    """Return all measurements by name."""
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(MEASURED.glob("*.json"))
    }


def pages() -> Iterator[str]:
    """Yield the Markdown of all measurements: a section with a table for each."""
    for name, one in documents().items():
        yield f"\n(measured-{name})=\n### {one['title']}\n"
        if one.get("about"):
            yield f"{one['about']}\n"
        if "numbers" in one:
            columns, rows = ["", ""], [[key, _shown(n)] for key, n in one["numbers"].items()]
        else:
            columns, rows = one["columns"], one["rows"]
        yield _table(columns, rows)
        sizes = one["sizes"]
        if isinstance(sizes, dict):
            sizes = ", ".join(f"{key} {value}" for key, value in sizes.items())
        libraries = ", ".join(f"{key} {value}" for key, value in one["versions"].items())
        facts = [f"`{one['command']}`", one["machine"], sizes, libraries, one["date"]]
        yield f"\n{'; '.join(filter(None, facts))}; {one['source']}.\n"


def figures() -> str:
    """Return the README's table of figures."""
    found = documents()
    rows = [
        [row, *(_cell(template, found[name]["numbers"]) for name in _COLUMNS.values())]
        for row, template in _FIGURES.items()
    ]
    return _table(["", *_COLUMNS], rows)


def filled(text: str) -> str:
    """Return the README with its table of figures up to date."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{figures()}\n{block[2]}", text)


def _cell(template: str, numbers: Mapping[str, float]) -> str:
    """Fill in a template whose fields are keys of ``numbers``; keys may hold dots and slashes."""
    for field, key, form in re.findall(r"(\{([^:}]+):([^}]+)\})", template):
        template = template.replace(field, format(numbers[key], form))
    return template


def _flat(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in found.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/")
        elif isinstance(value, list | tuple):
            if len(value) <= MAX_LIST:
                yield from _flat({str(at): one for at, one in enumerate(value)}, f"{name}/")
        elif value is None or isinstance(value, bool | int | float | str):
            yield name, value
        else:
            yield name, value.item()  # NumPy's numbers


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("|  |", "| |")


if __name__ == "__main__":
    README.write_text(filled(README.read_text("utf-8")), "utf-8")

"""``vouch-build``: the command line of the index builder, one sub-command a step."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from index_builder import live_commands
from index_builder.certificates import commands as certificates
from index_builder.configuration import (
    BuildConfig,
    builtin_configs,
    in_milvus,
    load_config,
    photographs_config,
)
from index_builder.index_command import index_command
from index_builder.progress import console
from index_builder.run import Run
from model_store.bundle import activate, bundle_ids, current_id, previous_id, read_manifest
from model_store.errors import BundleNotFound, ConfigError, VouchError

app = typer.Typer(
    help="Build what Vouch serves: train an encoder, fit its posterior, index a gallery, calibrate."
    " Each step reads and writes files in a run directory; `all` runs every step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigOption = Annotated[
    str,
    typer.Option(
        "--config",
        "-c",
        help=f"A TOML file, or one that comes with Vouch: {', '.join(builtin_configs())}.",
    ),
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="Directory of the steps' files. [default: runs/<name>]"),
]
BundlesOption = Annotated[
    Path | None,
    typer.Option("--bundles", help="Directory to publish into. [default: bundles/<name>]"),
]


_WITH_TORCH = frozenset({"train_step", "fit_step", "export_step", "build_all"})


def _opened(config_source: str, run: Path | None) -> tuple[BuildConfig, Run]:
    config = load_config(config_source)
    return config, Run(run or Path("runs") / config.name)


def _step(name: str) -> Any:  # noqa: ANN401 - a function of `index_builder.steps`
    """Import a step only when it runs, and torch only for those that need it."""
    if name != "train_step" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "torchrun starts several processes, and only `train` can share its work among them. "
            "Run the other steps without torchrun."
        )
    module = "index_builder.steps" if name in _WITH_TORCH else "index_builder.gallery_steps"
    return getattr(importlib.import_module(module), name)


def _print_report(report: dict[str, Any]) -> None:
    table = Table("measured on queries used for nothing else", "value")
    for name, value in _rows(report):
        table.add_row(name, value)
    Console().print(table)


def _rows(report: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten a report into lines of a table."""
    rows = []
    for name, value in report.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += _rows(value, f"{label}: ")
        elif isinstance(value, float):
            rows.append((label, f"{value:.4f}"))
        else:
            rows.append((label, "not defined" if value is None else str(value)))
    return rows


def _add_step(name: str, help_text: str) -> None:
    @app.command(name, help=help_text)
    def command(config: ConfigOption, run: RunOption = None) -> None:
        _step(f"{name}_step")(*_opened(config, run))


_add_step("train", "Train the encoder: images → checkpoint.safetensors.")
_add_step("fit", "Fit the posterior: checkpoint → posterior.safetensors.")
_add_step("export", "Export to ONNX, refused unless it agrees with torch.")
app.command("index")(index_command)


@app.command("calibrate")
def calibrate_command(
    config: ConfigOption,
    run: RunOption = None,
    feedback: Annotated[
        Path | None,
        typer.Option(help="The file that the service kept feedback in: corrects probabilities."),
    ] = None,
) -> None:
    """Fit the decision layer on held-out queries."""
    _step("calibrate_step")(*_opened(config, run), feedback)


@app.command("evaluate")
def evaluate_command(config: ConfigOption, run: RunOption = None) -> None:
    """Measure the staged bundle as it will be served: a table, and evaluation.json."""
    _print_report(_step("evaluate_step")(*_opened(config, run)))


@app.command("publish")
def publish_command(
    config: ConfigOption, run: RunOption = None, bundles: BundlesOption = None
) -> None:
    """Turn the staged parts into a verified bundle, by one rename, and make it the current one."""
    build, opened = _opened(config, run)
    bundle = _step("publish_step")(build, opened, bundles or Path("bundles") / build.name)
    print(bundle)


@app.command("all")
def all_command(
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="As for the single steps.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Instead of --config: a folder with one sub-folder of images a label."),
    ] = None,
    trunk: Annotated[
        str | None, typer.Option(help="With --images: the pretrained network, e.g. mobilenet_v2.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="With --trunk: a file, or a name of torchvision's (IMAGENET1K_V1)."),
    ] = None,
    labels: Annotated[
        bool, typer.Option(help="With --images: whether its sub-folders are labels.")
    ] = True,
    name: Annotated[
        str | None, typer.Option(help="With --images: of the gallery. [default: the folder's]")
    ] = None,
    milvus: Annotated[
        str | None, typer.Option(help="Put the gallery into this Milvus, as for `index`.")
    ] = None,
    run: RunOption = None,
    bundles: BundlesOption = None,
) -> None:
    """Run every step, from images to a published bundle, and print its evaluation."""
    if config is not None and labels and not (images or trunk or weights or name):
        build = load_config(config)
    elif config is None and images is not None and trunk is not None and weights is not None:
        build = photographs_config(images, trunk, weights, name, labelled=labels)
    else:
        raise ConfigError("Give either --config, or all of --images, --trunk and --weights.")
    build = in_milvus(build, milvus)
    opened = Run(run or Path("runs") / build.name)
    bundle, report = _step("build_all")(build, opened, bundles or Path("bundles") / build.name)
    _print_report(report)
    print(bundle)


@app.command("reproduce")
def reproduce_command(
    protocol: Annotated[str, typer.Option(help="Of the literature: fashion-mnist, cub-200, …")],
    methods: Annotated[str, typer.Option(help="Names with commas between them, or all.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="How many: 0, 1, 2, …")] = 5,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of each training, instead of the protocol's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of data sets. [default: VOUCH_DATA_DIR]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where all files go. [default: runs/reproduce/<protocol>]"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Of the protocol's pretrained trunk, instead of torchvision's."),
    ] = None,
    device: Annotated[str, typer.Option(help="To train on: auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Of the training: full, mixed, or auto, which is mixed on a GPU.")
    ] = "auto",
    jobs: Annotated[
        int, typer.Option(min=1, help="Measurements at a time, each in a process of its own.")
    ] = 1,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Take less data than was published.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch missing data, where torchvision can.")
    ] = False,
) -> None:
    """Measure methods of the papers on a published protocol: table, report.json, report.html.

    What is finished is not done again: interrupt it as you like, and give the command again.
    """
    reproduction = importlib.import_module("index_builder.reproduction.command")
    directory = out or Path("runs/reproduce") / protocol
    report = reproduction.reproduce(
        protocol,
        methods,
        seeds,
        directory,
        epochs=epochs,
        data=data,
        weights=weights,
        device=device,
        precision=precision,
        jobs=jobs,
        allow_partial=allow_partial,
        download=download,
    )
    print(report)


DirectoryArgument = Annotated[Path, typer.Argument(help="The directory of bundles.")]


@app.command("bundles")
def bundles_command(directory: DirectoryArgument) -> None:
    """List the bundles in a directory, oldest first, and which is served and was before."""
    marks = {current_id(directory): "current", previous_id(directory): "previous"}
    for bundle_id in bundle_ids(directory):
        print(bundle_id, marks.get(bundle_id, ""))


@app.command("activate")
def activate_command(
    directory: DirectoryArgument,
    bundle_id: Annotated[str, typer.Argument(help="As `vouch-build bundles` lists it.")],
) -> None:
    """Make a bundle the current one, once it is verified; running services change over to it."""
    if bundle_id not in bundle_ids(directory):
        raise BundleNotFound(
            f"There is no bundle {bundle_id!r} in {directory}. `vouch-build bundles {directory}` "
            "lists those there are."
        )
    read_manifest(directory / bundle_id)
    activate(directory, bundle_id)


@app.command("doctor")
def doctor_command(
    path: Annotated[
        Path | None,
        typer.Argument(help="A bundle, a directory of bundles, or the run of an indexing."),
    ] = None,
) -> None:
    """Look at an installation, bundles or a run; say what to do, and fail if anything is wrong."""
    examine = importlib.import_module("index_builder.doctor").examine
    states = set()
    for finding in examine(path):
        states.add(finding.state)
        print(f"{finding.state:5} {finding.what}")
        if finding.advice:
            print(f"      {finding.advice}")
    if "wrong" in states:
        raise typer.Exit(1)


@app.command("rollback")
def rollback_command(directory: DirectoryArgument) -> None:
    """Make the bundle the current one again that was before."""
    before = previous_id(directory)
    if before is None:
        raise BundleNotFound(f"No bundle was current in {directory} before the present one.")
    activate_command(directory, before)
    print(before)


app.add_typer(live_commands.app, name="items")
app.command("compact")(live_commands.compact_command)
app.command("backup")(live_commands.backup_command)
app.command("restore")(live_commands.restore_command)
app.command("certify")(certificates.certify_command)
app.command("verify")(certificates.verify_command)


def main() -> None:
    """Entry point; an error of the family is one line on standard error and exit status 1."""
    handler = RichHandler(console=console, show_time=False, show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        app()
    except VouchError as error:
        # Escaped: a path or a table's name in brackets would be taken for markup.
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        sys.exit(1)


if __name__ == "__main__":
    main()

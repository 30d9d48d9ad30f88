"""``vouch-build reproduce``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from index_builder.progress import working


def reproduce_command(
    protocol: Annotated[
        str, typer.Option(help="Protocol: fashion-mnist, …; or objectives, or stereo.")
    ],
    methods: Annotated[str, typer.Option(help="Comma-separated names of methods, or all.")] = "all",
    objective: Annotated[
        str | None,
        typer.Option(help="Training objective: supcon, el_nivmf, … [default: contrastive]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2, …")] = 5,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of each training. [default: the protocol's]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of data sets. [default: VOUCH_DATA_DIR]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output directory. [default: runs/reproduce/<protocol>[-<objective>]]"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Weights of the pretrained trunk. [default: torchvision's]"),
    ] = None,
    device: Annotated[str, typer.Option(help="Device for training: auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Precision of training: full, mixed, or auto (mixed on a GPU).")
    ] = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Number of parallel processes.")] = 1,
    allow_partial: Annotated[
        bool,
        typer.Option("--allow-partial", help="Accept less data than the published protocol uses."),
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Download missing data, if torchvision offers it.")
    ] = False,
) -> None:
    """Evaluate published methods on a published protocol; write a table, report.json, report.html.

    After an interruption, the same command continues.
    """
    with working("loading libraries"):
        reproduction = importlib.import_module("index_builder.reproduction.command")
    directory = Path("runs/reproduce") / "-".join(filter(None, (protocol, objective)))
    report = reproduction.reproduce(
        protocol,
        methods,
        seeds,
        out or directory,
        objective=objective,
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

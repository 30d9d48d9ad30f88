"""``vouch-build reproduce``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from index_builder.progress import working


def reproduce_command(
    protocol: Annotated[
        str, typer.Option(help="Of the literature: fashion-mnist, …; or objectives, or stereo.")
    ],
    methods: Annotated[str, typer.Option(help="Names with commas between them, or all.")] = "all",
    objective: Annotated[
        str | None,
        typer.Option(help="That trains the encoder: supcon, el_nivmf, … [default: contrastive]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many: 0, 1, 2, …")] = 5,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of each training, instead of the protocol's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of data sets. [default: VOUCH_DATA_DIR]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Of all files. [default: runs/reproduce/<protocol>[-<objective>]]"),
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
        int, typer.Option(min=1, help="Measurements at a time, each in a separate process.")
    ] = 1,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Take less data than was published.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch missing data, where torchvision can.")
    ] = False,
) -> None:
    """Measure methods of the papers on a published protocol: table, report.json, report.html.

    After an interruption the same command continues with what is missing.
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

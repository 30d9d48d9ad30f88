"""The steps of a build as commands, and ``reproduce``. Modules are imported late."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from pydantic import Field

from index_builder.commands.command_line import Options, with_options
from index_builder.configuration.build import BuildConfig, builtin_configs, load_config
from index_builder.encoders import as_named, with_encoder
from index_builder.pipeline.run import Run
from index_builder.progress import say_what_is_next, timed_step, working
from model_store.errors import ConfigError, DatasetError, WeightsError

ConfigOption = Annotated[
    str,
    typer.Option(
        "--config",
        "-c",
        help=f"A TOML file, or a built-in configuration: {', '.join(builtin_configs())}.",
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

SINGLE_STEPS = {
    "train": "Train the encoder: images → checkpoint.safetensors.",
    "fit": "Fit the posterior: checkpoint → posterior.safetensors.",
    "export": "Export the encoder to ONNX; fails if it differs from torch.",
}
"""Steps with only the options --config and --run, each with a help text."""


@contextmanager
def opened_run(
    config: BuildConfig,
    run: Path | None,
    *,
    to_write: bool = True,
    reads_trunk: bool = False,
    prepare: Callable[[], None] | None = None,
) -> Iterator[Run]:
    """Lock the run, check the input files of the build, and write its configuration.

    Yields the run.

    Parameters
    ----------
    to_write : see `Run.occupied`.
    reads_trunk : whether the command reads the weights or the encoder file of the configuration.
    prepare : function that fetches input files; None if nothing has to be fetched.

    Raises
    ------
    VouchError : an input file is missing.
    """
    opened = Run(run or Path("runs") / config.name)
    with opened.occupied(to_write=to_write):
        if prepare is not None:
            prepare()
        require_inputs(config, reads_trunk=reads_trunk)
        if to_write:
            opened.write_config(config)
        yield opened


def with_trunk(config: BuildConfig, opened: Run) -> BuildConfig:
    """Return the build with its encoder file; write the encoder's dimensions to the run."""
    build = with_encoder(config)
    opened.write_config(as_named(build, config))
    return build


def step_of(name: str, config: BuildConfig | None = None) -> Any:  # noqa: ANN401 - a function
    """Import a step when it runs; imports torch only if the step needs it.

    Parameters
    ----------
    config : the build, for a step of its encoder: train, fit or export.
    """
    if name != "train_step" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "Only `train` works under torchrun. Run the other steps without torchrun."
        )
    with working("loading libraries"), _without_collection():
        build = _all_steps()
        return getattr(build.steps_for(config) if config is not None else build, name)


def _all_steps() -> ModuleType:
    """Import `index_builder.pipeline.build`."""
    return importlib.import_module("index_builder.pipeline.build")


@contextmanager
def _without_collection() -> Iterator[None]:
    """Exclude the loaded libraries from garbage collection, which never frees them.

    Collections during the import of torch would take a fifth of the import time. At the end of the
    process, Python would search all objects of torch again, which takes 1.5 s of CPU time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def single_step(name: str) -> Callable[[str, Path | None], None]:
    """Return the command that runs the step ``name`` of `SINGLE_STEPS`."""

    def command(config: ConfigOption, run: RunOption = None) -> None:
        build = load_config(config)
        with opened_run(build, run, reads_trunk=True) as opened:
            build = with_trunk(build, opened)
            step = step_of(f"{name}_step", build)
            with timed_step(name):
                step(build, opened, _all_steps().splits_of(build))

    return command


def publish_command(
    config: ConfigOption, run: RunOption = None, bundles: BundlesOption = None
) -> None:
    """Publish the staged parts as a verified bundle, and make it the current one."""
    build = load_config(config)
    with opened_run(build, run, to_write=False) as opened:
        published = bundles or Path("bundles") / build.name
        publish_step = step_of("publish_step")
        with working("publishing"):
            bundle = publish_step(build, opened, published)
    print(bundle)
    say_what_is_next(published)


def require_inputs(config: BuildConfig, *, reads_trunk: bool) -> None:
    """Check that all files of the configuration exist.

    Parameters
    ----------
    reads_trunk : whether the weights of the trunk are also checked.

    Raises
    ------
    DatasetError : the folder or table does not exist, or a withheld label has no sub-folder.
    WeightsError : the file of weights does not exist.
    ConfigError : the client of the database is not installed.
    """
    dataset, weights = config.dataset, config.network.weights
    for path in (dataset.path, dataset.items):
        if path is not None and not path.exists():
            raise DatasetError(f"{path} does not exist. Name the folder or file with the data.")
    if dataset.kind == "folder" and dataset.path is not None:
        _require_labels(dataset.path, dataset.withheld_labels)
    if reads_trunk and weights is not None and Path(weights).suffix and not Path(weights).is_file():
        raise WeightsError(f"network.weights: {weights} does not exist, or is not a file.")
    config.index.require_client()


def _require_labels(folder: Path, withheld: tuple[str, ...]) -> None:
    """Check that each withheld label has a sub-folder."""
    if not folder.is_dir():
        raise DatasetError(
            f"{folder} is not a folder. `vouch-build all --images` also takes other sources."
        )
    missing = [name for name in withheld if not (folder / name).is_dir()]
    if not missing:
        return
    labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
    close = get_close_matches(missing[0], labels, 1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(labels[:20]) + (", …" if len(labels) > 20 else "")
    raise DatasetError(
        f"dataset.withheld_labels names {missing}, but {folder} has no such sub-folders.{meant} "
        f"It has {listed or 'none'}."
    )


class ReproduceOptions(Options):
    """Options of ``reproduce``."""

    protocol: str
    """Protocol: fashion-mnist, …; or objectives, or stereo."""
    methods: str = "all"
    """Comma-separated names of methods, or all."""
    objective: str | None = None
    """Training objective: supcon, el_nivmf, … [default: contrastive]"""
    seeds: int = Field(5, ge=1)
    """Number of seeds: 0, 1, 2, …"""
    epochs: int | None = Field(None, ge=1)
    """Epochs of each training. [default: the protocol's]"""
    data: Path | None = None
    """Folder of data sets. [default: VOUCH_DATA_DIR]"""
    out: Path | None = None
    """Output directory. [default: runs/reproduce/<protocol>[-<objective>]]"""
    weights: str | None = None
    """Weights of the pretrained trunk. [default: torchvision's]"""
    device: str = "auto"
    """Device for training: auto, cpu or cuda."""
    precision: str = "auto"
    """Precision of training: full, mixed, or auto (mixed on a GPU)."""
    jobs: int = Field(1, ge=1)
    """Number of parallel processes."""
    allow_partial: bool = False
    """Accept less data than the published protocol uses."""
    download: bool = False
    """Download missing data, if torchvision offers it."""


@with_options(ReproduceOptions)
def reproduce_command(options: ReproduceOptions) -> None:
    """Evaluate published methods on a published protocol; write a table, report.json, report.html.

    After an interruption, the same command continues.
    """
    with working("loading libraries"):
        reproduction = importlib.import_module("index_builder.reproduction.command")
    named = "-".join(filter(None, (options.protocol, options.objective)))
    report = reproduction.reproduce(
        options.protocol,
        options.methods,
        options.seeds,
        options.out or Path("runs/reproduce") / named,
        **options.model_dump(exclude={"protocol", "methods", "seeds", "out"}),
    )
    print(report)

"""The steps of a build as commands; what they run is imported when they run."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from index_builder.configuration.build import BuildConfig, builtin_configs, in_milvus, load_config
from index_builder.configuration.photographs import (
    encoder_config,
    gallery_name,
    photographs_config,
)
from index_builder.pipeline.run import Run
from index_builder.progress import console, say_what_is_next
from index_builder.storage import Storage, is_url
from model_store.errors import ConfigError

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

SINGLE_STEPS = {
    "train": "Train the encoder: images → checkpoint.safetensors.",
    "fit": "Fit the posterior: checkpoint → posterior.safetensors.",
    "export": "Export to ONNX, refused unless it agrees with torch.",
}
"""Steps that take a configuration and a run, and nothing else, with their help."""

_WITH_TORCH = frozenset({"train_step", "fit_step", "export_step", "build_all"})


def opened_run(config_source: str, run: Path | None) -> tuple[BuildConfig, Run]:
    """Return a configuration and the run of its build."""
    config = load_config(config_source)
    return config, Run(run or Path("runs") / config.name)


def step_of(name: str) -> Any:  # noqa: ANN401 - a function of `index_builder.pipeline.steps`
    """Import a step only when it runs, and torch only for those that need it."""
    if name != "train_step" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "torchrun starts several processes, and only `train` can share its work among them. "
            "Run the other steps without torchrun."
        )
    module = "steps" if name in _WITH_TORCH else "gallery_steps"
    with _without_collection():
        return getattr(_pipeline(module), name)


def _pipeline(module: str) -> ModuleType:
    """Import a module of the pipeline."""
    return importlib.import_module(f"index_builder.pipeline.{module}")


@contextmanager
def _without_collection() -> Iterator[None]:
    """Let the garbage collector rest: a fifth of torch's import is collecting what all stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def print_report(report: dict[str, Any]) -> None:
    """Print what an evaluation has measured."""
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


def single_step(name: str) -> Callable[[str, Path | None], None]:
    """Return the command that runs the step ``name`` of `SINGLE_STEPS`."""

    def command(config: ConfigOption, run: RunOption = None) -> None:
        build, opened = opened_run(config, run)
        step = step_of(f"{name}_step")
        step(build, opened, _pipeline("gallery_steps").splits_of(build))

    return command


def publish_command(
    config: ConfigOption, run: RunOption = None, bundles: BundlesOption = None
) -> None:
    """Turn the staged parts into a verified bundle, by one rename, and make it the current one."""
    build, opened = opened_run(config, run)
    published = bundles or Path("bundles") / build.name
    print(step_of("publish_step")(build, opened, published))
    say_what_is_next(published)


_EITHER = "Give either --config, or --images with --encoder, or with both --trunk and --weights."


def _n_features(encoder: Path) -> int:
    """Return the size of an encoder's penultimate layer."""
    from index_builder.vectors.encoder_file import find_encoder  # noqa: PLC0415 - slow
    from model_store.encoder.onnx import OnnxEncoder  # noqa: PLC0415

    return OnnxEncoder(find_encoder(encoder), "cpu", threads=1).n_features


def _as_folder(images: str, run: Path | None, name: str | None, *, labelled: bool) -> Path:
    """Return a folder of images; any other source is copied into the run's directory first."""
    path = Path(images).expanduser()
    if not is_url(images) and (path.is_dir() or not path.exists()):
        return Path(images)
    from index_builder.indexing.local_copy import copy_images  # noqa: PLC0415 - slow
    from index_builder.indexing.sources import name_of  # noqa: PLC0415

    called = name_of(images)
    folder = (run or Path("runs") / (name or gallery_name(called))) / "images" / called
    others = copy_images(images, folder, Storage(), labelled=labelled)
    if others.names:
        console.print(f"[yellow]{escape(others.sentence)}[/yellow]", soft_wrap=True)
    return folder


def all_command(
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="As for the single steps.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Instead of --config: a folder with one sub-folder of images a label; or what "
            "`index` takes, also a URL, which is copied to the run's directory."
        ),
    ] = None,
    trunk: Annotated[
        str | None, typer.Option(help="With --images: the pretrained network, e.g. mobilenet_v2.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="With --trunk: a file, or a name of torchvision's (IMAGENET1K_V1)."),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="With --images: what `encoder` wrote, in place of --trunk, --weights."),
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
    if config is not None and labels and not (images or trunk or weights or name or encoder):
        build = load_config(config)
    elif images is None or config is not None:
        raise ConfigError(_EITHER)
    elif encoder is not None and not (trunk or weights):
        folder = _as_folder(images, run, name, labelled=labels)
        build = encoder_config(folder, encoder, _n_features(encoder), name, labelled=labels)
    elif trunk is not None and weights is not None and encoder is None:
        folder = _as_folder(images, run, name, labelled=labels)
        build = photographs_config(folder, trunk, weights, name, labelled=labels)
    else:
        raise ConfigError(_EITHER)
    build = in_milvus(build, milvus)
    opened = Run(run or Path("runs") / build.name)
    published = bundles or Path("bundles") / build.name
    bundle, report = step_of("build_all")(build, opened, published)
    print_report(report)
    print(bundle)
    say_what_is_next(published)

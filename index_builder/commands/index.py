"""``vouch-build index``: the gallery of a configuration, or any collection of images."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.markup import escape
from rich.table import Table

from index_builder.configuration.build import CalibrationConfig, in_milvus, in_words, load_config
from index_builder.indexing.tolerance import NONE, parse_tolerance
from index_builder.pipeline.run import Run
from index_builder.progress import console, say_what_is_next
from model_store.errors import ConfigError
from model_store.gallery.index.plan import DEFAULT_SETTINGS, IndexSettings
from model_store.images import ImageLimits
from model_store.processors import usable_processors

if TYPE_CHECKING:
    from index_builder.datasets.other_formats import OtherFormats


class Engine(StrEnum):
    """The engine that decodes and encodes."""

    local = "local"
    ray = "ray"


class Index(StrEnum):
    """The kind of a gallery's index; see `IndexConfig`."""

    auto = "auto"
    flat = "flat"
    ivf_sq8 = "ivf_sq8"
    ivf_pq = "ivf_pq"
    hnsw = "hnsw"


class Provider(StrEnum):
    """The execution provider of the encoder."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def _promise(name: str) -> Any:  # noqa: ANN401 - typer's
    """Return the option of `index --calibrate` that is a setting of ``[calibration]``."""
    field = CalibrationConfig.model_fields[name]
    default = "" if field.default is None else f" [default: {field.default}]"
    return typer.Option(help=f"With --calibrate: {field.description}{default}")


def index_command(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of images, a manifest (.csv, .jsonl, .parquet with path, and maybe id, "
            "label, metadata), or a tar of images."
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="With SOURCE: a bundle, a directory of bundles, or an .onnx file."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="Instead of SOURCE: the gallery of a configuration."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the gallery. [default: the source's]")
    ] = None,
    description: Annotated[str, typer.Option(help="Of the gallery, for people.")] = "",
    labels: Annotated[
        bool,
        typer.Option(
            help="Whether first sub-folders, or the labels of a manifest, say what belongs "
            "together. If not, each image is a thing of its own; a manifest's labels are metadata."
        ),
    ] = True,
    root: Annotated[
        Path | None,
        typer.Option(
            help="The folder that a manifest's paths start from, and no image may lie outside of. "
            "[default: the source's own]"
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Directory to work in. [default: runs/<name>]")
    ] = None,
    bundles: Annotated[
        Path | None,
        typer.Option("--bundles", help="Directory to publish into. [default: bundles/<name>]"),
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on from what an interrupted run has embedded.")
    ] = True,
    max_bad: Annotated[
        str, typer.Option(help="Unreadable images to put up with: a share, or a number.")
    ] = "1%",
    strict: Annotated[bool, typer.Option("--strict", help="The same as --max-bad 0.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look at everything, embed nothing.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. [default: as many as may be used]")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="This machine, or a Ray cluster (the extra `ray`).")
    ] = Engine.local,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit probabilities: with a fifth of each label's images, 2,000 at most, which are "
            "kept out of the gallery; without labels, with views made up of its images. The "
            "encoder must not have been trained on them.",
        ),
    ] = False,
    max_error: Annotated[float | None, _promise("max_error")] = None,
    max_false_match_rate: Annotated[float | None, _promise("max_false_match_rate")] = None,
    expected_absent: Annotated[float | None, _promise("expected_absent")] = None,
    alpha: Annotated[float | None, _promise("alpha")] = None,
    coverage: Annotated[float | None, _promise("coverage")] = None,
    index: Annotated[
        Index,
        typer.Option(
            help="How it is searched; auto: exactly while small, then by size and budget."
        ),
    ] = Index.auto,
    memory_budget: Annotated[
        str,
        typer.Option(help="Of what the index keeps in memory: 512MiB, 4GiB, or bytes."),
    ] = "4GiB",
    min_recall: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="Share of the ten nearest that a search is to find."),
    ] = DEFAULT_SETTINGS.min_recall,
    milvus: Annotated[
        str | None,
        typer.Option(
            help="Put the gallery into this Milvus: http://host:19530, or a file that ends in .db. "
            "The token, if any, is VOUCH_MILVUS_TOKEN."
        ),
    ] = None,
    max_pixels: Annotated[
        int,
        typer.Option(
            min=1,
            help="Width × height of the largest image that is taken. The memory that decoding one "
            "may need is bounded in proportion: 1 GiB for 40 million.",
        ),
    ] = ImageLimits().max_pixels,
    max_bytes: Annotated[
        str, typer.Option(help="Size of the largest image file that is taken: 200MB, or bytes.")
    ] = "20MiB",
    provider: Annotated[Provider, typer.Option(help="What the encoder runs on.")] = Provider.auto,
) -> None:
    """Embed a gallery: of a configuration, as a step; or of any collection, to a bundle.

    A collection is published with the encoder it was embedded with. Interrupted, the same command
    goes on from where it was and ends with the same bundle.
    """
    settings = IndexSettings(index.value, parse_bytes(memory_budget, "--memory-budget"), min_recall)
    named = {
        "max_error": max_error,
        "max_false_match_rate": max_false_match_rate,
        "expected_absent": expected_absent,
        "alpha": alpha,
        "coverage": coverage,
    }
    asked = {name: value for name, value in named.items() if value is not None}
    if config is None and asked and not calibrate:
        raise ConfigError(
            "--max-error, --max-false-match-rate, --expected-absent, --alpha and --coverage say "
            "what calibrated answers promise. Give --calibrate with them."
        )
    promises = parse_promises(asked)
    if config is not None and (calibrate or asked or settings != DEFAULT_SETTINGS):
        raise ConfigError(
            "--calibrate and what it promises, --index, --memory-budget and --min-recall are for "
            "SOURCE. With --config the tables [calibration] and [index] say so, and `vouch-build "
            "calibrate` is a step of its own."
        )
    if config is not None and source is None and encoder is None:
        build = in_milvus(load_config(config), milvus)
        importlib.import_module("index_builder.pipeline.gallery_steps").index_step(
            build, Run(run or Path("runs") / build.name)
        )
        return
    if source is None or encoder is None or config is not None:
        raise ConfigError("Give either SOURCE and --encoder, or --config.")
    from index_builder.indexing.collection import Indexing, find_encoder, index_collection  # noqa: PLC0415
    from index_builder.indexing.dry_run import inspect_collection  # noqa: PLC0415
    from index_builder.indexing.sources import name_of, open_source  # noqa: PLC0415

    called = name or name_of(source)
    indexing = Indexing(
        open_source(source, root, labelled=labels),
        find_encoder(encoder),
        called,
        description,
        (run or Path("runs") / called) / "index",
        bundles or Path("bundles") / called,
        NONE if strict else parse_tolerance(max_bad),
        resume,
        workers or usable_processors(),
        engine.value,
        provider.value,
        settings,
        milvus,
        calibrate,
        promises,
        ImageLimits(parse_bytes(max_bytes, "--max-bytes"), max_pixels),
    )
    if dry_run:
        preview = inspect_collection(indexing)
        _print_table("before anything is embedded", preview.rows())
        _say(preview.others)
        return
    try:
        outcome = index_collection(indexing)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here")
        raise typer.Exit(130) from None
    _print_table("indexed", outcome.rows(indexing.directory))
    _say(outcome.others)
    print(outcome.bundle)
    say_what_is_next(indexing.bundles)


def parse_bytes(text: str, option: str) -> int:
    """Read a size: a number of bytes, or one with a unit such as MB or GiB.

    Raises
    ------
    ConfigError
    """
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError as error:
        raise ConfigError(
            f"{option} {text!r} is no size. Give bytes, or a number with a unit: 512MiB."
        ) from error
    if size <= 0:
        raise ConfigError(f"{option} {text!r} leaves nothing. Give more.")
    return size


def parse_promises(asked: Mapping[str, float]) -> CalibrationConfig:
    """Return what calibrated answers shall promise, the rest as it is by default.

    Raises
    ------
    ConfigError : a value is out of range.
    """
    try:
        return CalibrationConfig.model_validate(asked)
    except ValidationError as error:
        named = {f"--{name.replace('_', '-')}": value for name, value in asked.items()}
        raise ConfigError(f"What answers shall promise, {named}: {in_words(error)}.") from error


def _say(others: OtherFormats) -> None:
    """Tell of files that look like images and were not taken."""
    if others.names:
        console.print(f"[yellow]{escape(others.sentence)}[/yellow]", soft_wrap=True)


def _print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    table = Table(title, "")
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)

"""``vouch-build index``: indexes a collection of images, or the gallery of a configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ByteSize, Field, TypeAdapter, ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from index_builder.commands.outcome import JsonOption, OutcomeReport, RequireOption
from index_builder.commands.steps import opened_run, step_of
from index_builder.configuration.build import (
    DATABASE_OPTIONS,
    CalibrationConfig,
    IndexConfig,
    in_database,
    load_config,
    parse_promises,
)
from index_builder.encoders import FORMS, resolve_encoder
from index_builder.indexing.blocks import NONE, parse_tolerance
from index_builder.progress import console, say_what_is_next, timed_step, warn, working
from index_builder.storage import Patience, Storage, is_url
from index_builder.storage.storage import PATIENCE
from model_store.bundles.directory import name_problem
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import ConfigError, UsageError
from model_store.gallery.filters.grammar import named_fields
from model_store.gallery.index.plan import DEFAULT_SETTINGS, IndexSettings
from model_store.images import MOST_PREVIEW_SIDE, THUMBNAIL_SIDE, ImageLimits
from model_store.machine import ProviderChoice, usable_processors
from model_store.text_values import as_list

from .command_line import PROMISES, Options, given_options, with_options

if TYPE_CHECKING:
    from index_builder.datasets.image_files import LeftOut
    from index_builder.indexing.collection import Indexing
    from index_builder.indexing.parents import Parents
    from index_builder.indexing.sources import Source
    from index_builder.vectors.table import VectorTable


_OF_CONFIG = frozenset({"config", "run", "database"})
"""Options that the step of a configuration takes."""


ParentsOption = Annotated[
    Path | None,
    typer.Option(
        help="Parents of labels, such as the genus of a species: a table (.csv, .jsonl, .parquet) "
        "with `label` and `parent`. Ambiguous queries are answered with the most specific parent "
        "that meets the error bound."
    ),
]
LevelsOption = Annotated[
    str | None,
    typer.Option(
        help="Names of metadata fields with the parents of an item's label, the most specific "
        "first, for example genus,family."
    ),
]

DatabaseOption = Annotated[
    str | None,
    typer.Option(*DATABASE_OPTIONS, help=IndexConfig.model_fields["database_uri"].description),
]
DatabaseOptionOfAll = Annotated[
    str | None,
    typer.Option(*DATABASE_OPTIONS, help="Database that stores the gallery; see `index`."),
]


def promise(name: str) -> Any:  # noqa: ANN401 - typer's
    """Return an option that is a setting of ``[calibration]``."""
    field = CalibrationConfig.model_fields[name]
    default = "" if field.default is None else f" [default: {field.default}]"
    return typer.Option(help=f"{field.description}{default}")


class PromiseOptions(Options):
    """Options that are settings of ``[calibration]``."""

    max_error: Annotated[float | None, promise("max_error")] = None
    max_false_match_rate: Annotated[float | None, promise("max_false_match_rate")] = None
    expected_absent: Annotated[float | None, promise("expected_absent")] = None
    alpha: Annotated[float | None, promise("alpha")] = None
    coverage: Annotated[float | None, promise("coverage")] = None

    @property
    def promises(self) -> dict[str, float]:
        """The given error bounds."""
        named = {name: getattr(self, name) for name in PROMISES}
        return {name: value for name, value in named.items() if value is not None}


class IndexOptions(PromiseOptions):
    """Options of the command."""

    source: Annotated[
        str | None,
        typer.Argument(
            help="Images: a folder, a manifest (.csv, .jsonl, .parquet with the columns path and "
            "optionally id, label, metadata, bbox), COCO annotations or a IIIF manifest "
            "(.json), a tar (also of webdataset), or Parquet with images. A path, or a URL: "
            "s3://, gs://, az://, https:// (the extra `remote`). Or vectors (.npy, .npz, "
            ".parquet, .arrow), with --encoder-name or an --encoder that takes vectors."
        ),
    ] = None
    encoder: str | None = Field(
        None,
        description=f"Encoder of SOURCE: {FORMS}; or a path: an exported encoder, a bundle, a "
        "directory of bundles, an .onnx file. [default: MobileNetV2, which comes with Vouch]",
    )
    encoder_name: str | None = None
    """Name of the model that produced the vectors of SOURCE. The model itself is not required."""
    items: Path | None = None
    """Manifest (.csv, .jsonl, .parquet) with one line for each row of SOURCE, if SOURCE has
    vectors. Columns: id and optionally label, metadata, group, source."""
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            help="Instead of SOURCE: a configuration of a build; indexes the "
            "gallery of this build.",
        ),
    ] = None
    name: str | None = None
    """Name of the gallery. [default: the name of the source]"""
    description: str = ""
    """Description of the gallery."""
    labels: bool = True
    """Use the first sub-folder of each path, or the column `label` of a manifest, as labels.
    Otherwise each image is its own class, and the column `label` is metadata."""
    root: str | None = None
    """Base folder or URL for the relative paths of a manifest. Paths and links may not lead out of
    this folder. [default: the folder of SOURCE]"""
    run: Path | None = None
    """Directory to work in. [default: runs/<name>]"""
    bundles: Path | None = None
    """Directory to publish into. [default: bundles/<name>]"""
    resume: bool = True
    """Reuse the embeddings of an interrupted run."""
    max_bad: str = "1%"
    """Maximum number or share of unreadable images."""
    strict: bool = False
    """Same as --max-bad 0."""
    dry_run: bool = False
    """Check the source and print estimates; index nothing."""
    workers: int | None = Field(None, ge=1)
    """Number of processes. [default: usable processors]"""
    engine: Literal["local", "ray"] = "local"
    """local: this machine; ray: a Ray cluster (extra `ray`)."""
    calibrate: bool = False
    """Fit probabilities and verdicts. With labels, items are the queries, at most 2,000; each is
    compared with the rest of the gallery. Without labels, queries are augmented views. The encoder
    must not have been trained on the images."""
    parents: ParentsOption = None
    levels: LevelsOption = None
    index: Literal["auto", "flat", "ivf_sq8", "ivf_pq", "hnsw"] = "auto"
    """Kind of index. auto: exact for small galleries, else by size and memory budget."""
    memory_budget: str = "4GiB"
    """Maximum memory of the index: 512MiB, 4GiB, or bytes."""
    min_recall: float = Field(DEFAULT_SETTINGS.min_recall, ge=0.01, le=1)
    """Minimum recall of the index. Recall is the share of the ten nearest items that a search
    finds."""
    filter_field: list[str] | None = None
    """Metadata fields to index for filters, for example brand.name,year. [default: the fields that
    most items have]"""
    previews: int | None = Field(None, ge=THUMBNAIL_SIDE + 1, le=MOST_PREVIEW_SIDE)
    """Longest side of previews in pixels. The bundle stores previews in addition to thumbnails. At
    1024 pixels, the preview of a photograph takes 100 to 250 kB. [default: no previews]"""
    database: DatabaseOption = None
    max_pixels: int = Field(ImageLimits().max_pixels, ge=1)
    """Maximum width × height of an image. The memory limit for decoding grows with this number: 1
    GiB for 40 million pixels."""
    max_bytes: str = "20MiB"
    """Maximum size of an image file: 200MB, or bytes."""
    fetch_seconds: float = Field(PATIENCE.file_s, ge=1)
    """Timeout to fetch an image from a URL, including retries."""
    require: RequireOption = None
    as_json: JsonOption = False
    provider: ProviderChoice = "auto"
    """Execution provider of the encoder."""

    @property
    def settings(self) -> IndexSettings:
        """The settings of the search index."""
        budget = parse_bytes(self.memory_budget, "--memory-budget")
        names = tuple(as_list(self.filter_field)) if self.filter_field else None
        named_fields(names)
        return IndexSettings(
            self.index,
            budget,
            self.min_recall,
            filter_fields=names,
            preview_side=self.previews,
        )

    def require_consistent(self) -> None:
        """Refuse options that contradict each other.

        Raises
        ------
        UsageError
        """
        if self.config is not None:
            if self.source is not None:
                raise UsageError("SOURCE and --config exclude each other. Give one of them.")
            excluded = self._given(
                *(name for name in type(self).model_fields if name not in _OF_CONFIG)
            )
            if excluded:
                raise UsageError(
                    f"{excluded} cannot be given with --config. Set it in the file: the gallery in "
                    "[index], error bounds in [calibration]. `calibrate` is a separate step."
                )
            return
        if self.source is None:
            raise UsageError("index needs SOURCE, the images or vectors to index, or --config.")
        if self.strict and self._given("max_bad"):
            raise UsageError("--strict and --max-bad exclude each other. Give one of them.")
        if self.name is not None and (problem := name_problem(self.name)) is not None:
            raise UsageError(f"--name: {problem}")
        if self.database is not None:
            from model_store.gallery.opening import engine_at  # noqa: PLC0415 - slow

            try:
                engine_at(self.database).require_address(self.database)
            except ConfigError as error:
                raise UsageError(f"--database: {error}") from None
        of_calibration = self._given(*PROMISES, "parents", "levels")
        if of_calibration and not self.calibrate:
            raise UsageError(
                f"{of_calibration} needs --calibrate, because it applies to calibrated answers."
            )
        parse_promises(self.promises)
        if self.require is not None and not (self.calibrate or self.dry_run):
            raise UsageError("--require needs --calibrate, because it checks calibrated answers.")
        if self.encoder is not None and self.encoder_name is not None:
            raise UsageError("--encoder and --encoder-name exclude each other. Give one of them.")

    def indexing(self, source: str) -> Indexing:
        """Return the collection, with the options for indexing it.

        Raises
        ------
        ConfigError, DatasetError, BundleError : an option, the source or the encoder is invalid.
        """
        # Imported late, because --help does not need these modules.
        from index_builder.indexing.collection import Indexing  # noqa: PLC0415
        from index_builder.indexing.sources import name_of  # noqa: PLC0415
        from index_builder.indexing.workdir import require_own  # noqa: PLC0415

        called = self.name or name_of(source)
        run = self.run or Path("runs") / called
        require_own(run)
        storage = Storage(Patience(self.fetch_seconds))
        return Indexing(
            *self._opened(source, run, storage),
            called,
            self.description,
            run / "index",
            self.bundles or Path("bundles") / called,
            NONE if self.strict else parse_tolerance(self.max_bad),
            self.resume,
            self.workers or usable_processors(),
            self.engine,
            self.provider,
            self.settings,
            self.database,
            self.calibrate,
            parse_promises(self.promises),
            ImageLimits(parse_bytes(self.max_bytes, "--max-bytes"), self.max_pixels),
            storage,
            named_parents(self.parents, self.levels),
        )

    def _given(self, *names: str) -> str:
        """Return the options among ``names`` that differ from their defaults."""
        defaults = {name: type(self).model_fields[name].default for name in names}
        values = {name: getattr(self, name) for name in names}
        return given_options({n: v for n, v in values.items() if v != defaults[n]})

    def _opened(self, source: str, run: Path, storage: Storage) -> tuple[Source, Path]:
        """Return the source, and the file of its encoder."""
        from index_builder.indexing.sources import (  # noqa: PLC0415
            is_of_vectors,
            open_source,
            open_vectors,
        )
        from index_builder.indexing.workdir import occupied  # noqa: PLC0415
        from index_builder.vectors.encoder_file import find_encoder  # noqa: PLC0415

        if self.encoder_name is not None:
            if is_url(source):
                raise UsageError(
                    f"--encoder-name needs a local table of vectors, but {source} is a URL. Copy "
                    "the table here first."
                )
            self._require_no_options_of_images(source)
            vectors = open_vectors(Path(source), self.items, labelled=self.labels)
            with occupied(run):
                return vectors, declared(run, vectors.table, self.encoder_name)
        of_vectors = not is_url(source) and is_of_vectors(Path(source))
        if of_vectors and self.encoder is None:
            raise UsageError(
                f"{source} holds vectors, which an image encoder cannot take. Give --encoder-name "
                "NAME, the name of the model that produced the vectors."
            )
        encoder = find_encoder(resolve_encoder(self.encoder))
        if of_vectors:
            self._require_no_options_of_images(source)
            return open_vectors(Path(source), self.items, labelled=self.labels), encoder
        if self.items is not None:
            raise UsageError(
                f"--items needs a table of vectors, but {source} holds images. Give a manifest of "
                "the images as SOURCE."
            )
        return open_source(source, self.root, labelled=self.labels, storage=storage), encoder

    def _require_no_options_of_images(self, source: str) -> None:
        """Refuse options that have no effect on vectors."""
        of_images = self._given("root", "max_pixels", "max_bytes")
        if of_images:
            raise UsageError(
                f"{of_images} applies to images, but {source} holds vectors. Remove it."
            )


def declared(run: Path, table: VectorTable, name: str) -> Path:
    """Write the encoder file of a table of vectors into the run directory."""
    from index_builder.vectors.frozen_graph import write_declared_encoder  # noqa: PLC0415

    path = run / ENCODER_FILE
    write_declared_encoder(path, table.described(name))
    return path


def named_parents(table: Path | None, levels: str | None) -> Parents:
    """Return the source of the parents of labels.

    Raises
    ------
    UsageError : both arguments are given, or ``levels`` is invalid.
    """
    from index_builder.indexing.parents import Parents  # noqa: PLC0415 - slow

    names = tuple(name.strip() for name in (levels or "").split(",") if name.strip())
    if table is not None and levels is not None:
        raise UsageError("--parents and --levels exclude each other. Give one of them.")
    if levels is not None and (not names or len(set(names)) < len(names)):
        raise UsageError(
            f"--levels {levels!r} must name different metadata fields. Example: --levels "
            "genus,family."
        )
    return Parents(table, names)


def parse_bytes(text: str, option: str) -> int:
    """Read a size: a number of bytes, or a number with a unit such as MB or GiB.

    Raises
    ------
    ConfigError
    """
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError as error:
        raise UsageError(
            f"{option} {text!r} is not a size. Give bytes, or a number with a unit: 512MiB."
        ) from error
    if size <= 0:
        raise UsageError(f"{option} {text!r} is not above 0. Give bytes, or 512MiB.")
    return size


@with_options(IndexOptions)
def index_command(options: IndexOptions) -> None:
    """Embed a collection and publish it as a bundle, or run the step of a build.

    The bundle contains the encoder of the collection. A collection of vectors (--encoder-name) has
    no encoder, so its queries are vectors. After an interruption, the same command continues and
    ends with the same bundle.
    """
    options.require_consistent()
    shown = OutcomeReport.of(options.require, options.as_json)
    if options.source is not None:
        with working("loading libraries"):
            indexing = options.indexing(options.source)
        if options.dry_run:
            _preview(indexing, as_json=options.as_json)
            return
        shown.show(run_index(indexing, shown))
        say_what_is_next(indexing.bundles)
    elif options.config is not None:
        build = in_database(load_config(options.config), options.database)
        with opened_run(build, options.run) as run:
            index_step = step_of("index_step")
            with timed_step("index"):
                index_step(build, run)


def _preview(indexing: Indexing, *, as_json: bool) -> None:
    """Print the estimates of a dry run on stdout, because they are its result.

    Raises
    ------
    TooManyBadImages : the run would certainly stop.
    """
    with working("looking through the source"):
        from index_builder.indexing.dry_run import inspect_collection  # noqa: PLC0415

        preview = inspect_collection(indexing)
    if as_json:
        print(json.dumps(preview.report(), indent=1))
    else:
        _print_table("before anything is embedded", preview.rows(), Console())
    _say(preview.left_out)
    preview.require_complete()


def run_index(indexing: Indexing, shown: OutcomeReport) -> Path:
    """Index a collection and return its bundle.

    Raises
    ------
    VouchError : indexing fails, or the outcome does not meet --require.
    """
    from index_builder.indexing.collection import index_collection  # noqa: PLC0415
    from index_builder.indexing.workdir import Work  # noqa: PLC0415

    shown.table = Work(indexing.directory).calibration_table if indexing.calibrate else None
    try:
        with working("indexing"):
            outcome = index_collection(indexing, shown.check)
    except KeyboardInterrupt:
        console.print("interrupted; the same command continues from here")
        raise typer.Exit(130) from None
    _print_table("indexed", outcome.rows(indexing.directory))
    _say(outcome.left_out)
    return outcome.bundle


def _say(left_out: LeftOut) -> None:
    """Print the reasons why files were left out."""
    for sentence in left_out.sentences:
        warn(sentence)


def _print_table(title: str, rows: Sequence[tuple[str, str]], where: Console = console) -> None:
    table = Table(title, "")
    for name, value in rows:
        table.add_row(name, escape(value))
    where.print(table)

"""``vouch-build all``: every step, from images or vectors to a published bundle.

``vouch-build config`` creates, checks and prints the configuration of these steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from index_builder.commands.command_line import CommandLine, Options, given_options, with_options
from index_builder.commands.index import DatabaseOptionOfAll, declared
from index_builder.commands.outcome import JsonOption, OutcomeReport, RequireOption
from index_builder.commands.steps import (
    BundlesOption,
    RunOption,
    opened_run,
    step_of,
    with_trunk,
)
from index_builder.configuration.build import (
    BuildConfig,
    builtin_configs,
    encoder_config,
    in_database,
    load_config,
    vectors_config,
)
from index_builder.configuration.defaults import gallery_name
from index_builder.configuration.environment import signing
from index_builder.configuration.file import effective_file, schema_file, starting_file
from index_builder.encoders import FORMS, require_form, with_dimensions
from index_builder.output import writing
from index_builder.pipeline.run import EVALUATION_TABLE
from index_builder.progress import note, say_what_is_next, warn, working
from index_builder.storage import Storage, is_url
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import OutputError, UsageError
from model_store.files import create


class AllOptions(Options):
    """Options of the command."""

    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            help="Instead of --images: a TOML file with the configuration of the build, or "
            f"the name of a built-in configuration: {', '.join(builtin_configs())}.",
        ),
    ] = None
    images: str | None = None
    """A folder with a sub-folder of images for each label. Alternatively, any other source of
    images that `index` reads, for example a URL; these images are first copied to the run
    directory."""
    root: str | None = None
    """Base folder or URL for the relative paths of a table in --images. Paths may not lead out of
    this folder. [default: the folder of the table]"""
    encoder: str | None = Field(
        None,
        description=f"Encoder for --images: {FORMS}, or a path. For --vectors: the path of an "
        "encoder that takes vectors. [default: MobileNetV2, which comes with Vouch]",
    )
    vectors: Path | None = None
    """Instead of --images: a table of vectors with labels (.npy, .npz, .parquet, .arrow)."""
    items: Path | None = None
    """With --vectors: a manifest (id, label, metadata) with one line for each row of the table."""
    encoder_name: str | None = None
    """With --vectors: name of the model that produced the vectors."""
    labels: bool = True
    """Use the sub-folders of --images as labels."""
    name: str | None = None
    """Name of the gallery. [default: the name of the source]"""
    database: DatabaseOptionOfAll = None
    dry_run: bool = False
    """Print the plan of the build; build nothing."""
    run: RunOption = None
    bundles: BundlesOption = None
    require: RequireOption = None
    as_json: JsonOption = False

    @property
    def build(self) -> BuildConfig:
        """The configuration of the requested build. Call `prepare` first, to fetch its files.

        Raises
        ------
        UsageError : options contradict each other.
        ConfigError : a value is wrong.
        """
        self._require_consistent()
        if self.config is not None:
            return load_config(self.config)
        if self.vectors is not None:
            return self._of_vectors(self.vectors)
        folder = self._copied or Path(str(self.images))
        return encoder_config(folder, self.encoder, self.name, labelled=self.labels)

    def _require_consistent(self) -> None:
        """Refuse a command with several sources, or with options that do not fit the source.

        Raises
        ------
        UsageError
        """
        sources = {"images": self.images, "vectors": self.vectors, "config": self.config}
        given = [name for name, source in sources.items() if source is not None]
        if not given:
            raise UsageError("Give --images FOLDER, --vectors FILE, or --config FILE.")
        if len(given) > 1:
            raise UsageError(f"{given_options(sources)} exclude each other. Give one of them.")
        excluded: dict[str, dict[str, object]] = {
            "images": {"items": self.items, "encoder_name": self.encoder_name},
            "vectors": {"no_labels": not self.labels, "root": self.root},
            "config": {
                "encoder": self.encoder,
                "encoder_name": self.encoder_name,
                "items": self.items,
                "name": self.name,
                "no_labels": not self.labels,
                "root": self.root,
            },
        }
        too_much = given_options(excluded[given[0]])
        if too_much:
            place = "Set it in the file" if given == ["config"] else "Remove it"
            raise UsageError(f"{too_much} cannot be given with --{given[0]}. {place}.")
        if self.root is not None and self._copied is None:
            raise UsageError(
                f"--root applies to a table, but {self.images} is none. Remove --root."
            )

    def prepare(self) -> None:
        """Copy remote images, and write the encoder file for vectors with --encoder-name."""
        if self._copied is not None:
            from index_builder.indexing.local_copy import copy_images  # noqa: PLC0415 - slow

            with working("copying images"):
                left_out = copy_images(
                    str(self.images), self._copied, Storage(), labelled=self.labels, root=self.root
                )
            for sentence in left_out.sentences:
                warn(sentence)
        if self.vectors is not None and self.encoder_name is not None:
            from index_builder.vectors.table import open_table  # noqa: PLC0415 - slow

            declared(self._run(self.vectors.stem), open_table(self.vectors), self.encoder_name)

    @property
    def writes(self) -> bool:
        """Whether the command writes to the run directory; a dry run writes only fetched files."""
        return not self.dry_run or self._copied is not None or self.encoder_name is not None

    @property
    def _copied(self) -> Path | None:
        """The folder to copy images to; None if the images are already in a local folder."""
        images = self.images
        if images is None:
            return None
        path = Path(images).expanduser()
        if not is_url(images) and (path.is_dir() or not path.exists()):
            return None
        from index_builder.indexing.sources import name_of  # noqa: PLC0415 - slow

        called = name_of(images)
        return self._run(called) / "images" / called

    def _of_vectors(self, table: Path) -> BuildConfig:
        """Return the configuration for a table of vectors, with an encoder or an encoder's name."""
        if (self.encoder is None) == (self.encoder_name is None):
            raise UsageError(
                "--vectors needs --encoder-name, or an --encoder that takes vectors. Give one."
            )
        encoder = self.encoder or self._run(table.stem) / ENCODER_FILE
        return vectors_config(table, self.items, encoder, self.encoder_name, self.name)

    def _run(self, source: str) -> Path:
        """Return the run directory for a source of this name."""
        return self.run or Path("runs") / (self.name or gallery_name(source))


@with_options(AllOptions)
def all_command(options: AllOptions) -> None:
    """Run every step, from images or vectors to a published bundle, and print its outcome.

    The plan is printed first: the number of calibration queries, and the error bound that this
    number can guarantee.
    """
    shown = OutcomeReport.of(options.require, options.as_json)
    built = run_all(options, shown)
    if built is not None:
        published, bundle = built
        shown.show(bundle)
        say_what_is_next(published)


def run_all(options: AllOptions, shown: OutcomeReport) -> tuple[Path, Path] | None:
    """Run every step; return the directory of bundles and the new bundle. None after a dry run.

    Raises
    ------
    VouchError : a step fails, or the outcome does not meet --require.
    """
    config = in_database(options.build, options.database)
    if options.encoder_name is None:
        require_form(config.network.encoder)
    published = options.bundles or Path("bundles") / config.name
    signing().key_for(published)  # fails before the work
    with opened_run(
        config,
        options.run,
        to_write=options.writes,
        reads_trunk=True,
        prepare=options.prepare,
    ) as opened:
        shown.table = opened.directory / EVALUATION_TABLE
        plan_of = step_of("plan_of")
        with working("reading the source"):
            plan = plan_of(config)
        if options.dry_run:  # the plan is the result, so print it on stdout
            said = [json.dumps(plan.report(), indent=1)] if options.as_json else plan.lines()
            print("\n".join(said))
        else:
            plan.show()
        _say_what_is_not_used(config.network.encoder)
        plan.require_feasible()
        if options.dry_run:
            return None
        build = with_trunk(config, opened)
        bundle, _ = step_of("build_all")(build, opened, published, shown.check)
    return published, bundle


def _say_what_is_not_used(encoder: str | None) -> None:
    """Print a message if the encoder has a text tower, because the build has none."""
    from index_builder.vectors.encoder_file import has_text_tower  # noqa: PLC0415 - slow

    if encoder is not None and has_text_tower(Path(encoder)):
        note(
            f"The text tower of {encoder} is not used, because the build makes another encoder. "
            "For searches with texts, use `vouch-build index --encoder`."
        )


config_app = CommandLine(help="Create, check and print the configuration file of a build.")


@config_app.command("show")
@with_options(AllOptions)
def show_command(options: AllOptions) -> None:
    """Print the whole configuration of a build, from --config or from the options of `all`.

    The output is a valid configuration file. Nothing is built.
    """
    build = in_database(options.build, options.database)
    print(effective_file(with_dimensions(build)), end="")


@config_app.command("init")
def init_command(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("vouch.toml"),
) -> None:
    """Write a commented configuration file for photographs, with all keys and defaults."""
    with writing(str(file)):
        try:
            create(file, starting_file(file.name).encode())
        except FileExistsError as error:
            raise OutputError(
                f"{file} already exists and is not overwritten. Name another file."
            ) from error
    print(file)


@config_app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of a configuration file, for completion and checks in editors."""
    print(schema_file(), end="")

"""``vouch-build all``: every step, from images or vectors to a published bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from index_builder.commands.index_options import declared
from index_builder.commands.options_class import with_options
from index_builder.commands.outcome import JsonOption, OutcomeReport, RequireOption
from index_builder.commands.steps import (
    BundlesOption,
    RunOption,
    opened_run,
    step_of,
    with_trunk,
)
from index_builder.configuration.build import BuildConfig, in_milvus, load_config
from index_builder.configuration.defaults import gallery_name
from index_builder.configuration.photographs import encoder_config, vectors_config
from index_builder.configuration.signing import signing_key
from index_builder.encoders.resolve import FORMS
from index_builder.pipeline.run import EVALUATION_TABLE
from index_builder.progress import console, say_what_is_next, working
from index_builder.storage import Storage, is_url
from model_store.bundles.manifest import ENCODER_FILE
from model_store.errors import ConfigError

_EITHER = (
    "Give one of --config, --images and --vectors. --encoder goes with --images or --vectors, "
    "--encoder-name and --items with --vectors, --no-labels with --images."
)


@dataclass(frozen=True, slots=True)
class AllOptions:
    """Every option of the command, as it was given."""

    config: Annotated[
        str | None, typer.Option("--config", "-c", help="As for the single steps.")
    ] = None
    images: Annotated[
        str | None,
        typer.Option(
            help="Instead of --config: a folder with one sub-folder of images a label; or what "
            "`index` takes, also a URL, which is copied to the run's directory."
        ),
    ] = None
    encoder: Annotated[
        str | None,
        typer.Option(
            help=f"With --images: {FORMS}, or the path of an encoder. [default: MobileNetV2, which "
            "comes with Vouch]"
        ),
    ] = None
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --images: a table of vectors with labels (.npy, .npz, .parquet, "
            ".arrow)."
        ),
    ] = None
    items: Annotated[
        Path | None,
        typer.Option(help="With --vectors: a manifest (id, label, metadata), a line for each row."),
    ] = None
    encoder_name: Annotated[
        str | None,
        typer.Option(help="With --vectors: the name of what made them, in place of --encoder."),
    ] = None
    labels: Annotated[
        bool, typer.Option(help="With --images: whether its sub-folders are labels.")
    ] = True
    name: Annotated[
        str | None, typer.Option(help="With --images: of the gallery. [default: the folder's]")
    ] = None
    milvus: Annotated[
        str | None, typer.Option(help="Put the gallery into this Milvus, as for `index`.")
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan of the build, and stop.")
    ] = False
    run: RunOption = None
    bundles: BundlesOption = None
    require: RequireOption = None
    as_json: JsonOption = False

    @property
    def build(self) -> BuildConfig:
        """The build that is asked for, once `prepare` has fetched what it reads.

        Raises
        ------
        ConfigError : options contradict each other, or a value is wrong.
        """
        images, vectors = self.images, self.vectors
        of_vectors = vectors, self.items, self.encoder_name
        untouched = self.labels and not any((images, *of_vectors, self.name, self.encoder))
        if self.config is not None and untouched:
            return load_config(self.config)
        if self.config is None and vectors is not None and self.labels and images is None:
            return self._of_vectors(vectors)
        if self.config is None and images is not None and not any(of_vectors):
            folder = self._copied or Path(images)
            return encoder_config(folder, self.encoder, self.name, labelled=self.labels)
        raise ConfigError(_EITHER)

    def prepare(self) -> None:
        """Copy images from elsewhere, and write the encoder that vectors only name."""
        if self._copied is not None:
            from index_builder.indexing.local_copy import copy_images  # noqa: PLC0415 - slow

            images, labelled = str(self.images), self.labels
            with working("copying images"):
                left_out = copy_images(images, self._copied, Storage(), labelled=labelled)
            for sentence in left_out.sentences:
                console.print(f"[yellow]{escape(sentence)}[/yellow]", soft_wrap=True)
        if self.vectors is not None and self.encoder_name is not None:
            from index_builder.vectors.table import open_table  # noqa: PLC0415 - slow

            declared(self._run(self.vectors.stem), open_table(self.vectors), self.encoder_name)

    @property
    def _copied(self) -> Path | None:
        """The folder that images are copied to; None where they are in a folder already."""
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
        """Return the build of a table of vectors, whose encoder may only be named."""
        if (self.encoder is None) == (self.encoder_name is None):
            raise ConfigError(
                "--vectors needs --encoder-name, or an --encoder that takes vectors. Give one."
            )
        encoder = self.encoder or self._run(table.stem) / ENCODER_FILE
        return vectors_config(table, self.items, encoder, self.encoder_name, self.name)

    def _run(self, source: str) -> Path:
        """Return the directory to work in, of a source that is called so."""
        return self.run or Path("runs") / (self.name or gallery_name(source))


@with_options(AllOptions)
def all_command(options: AllOptions) -> None:
    """Run every step, from images or vectors to a published bundle, and print its outcome.

    The plan comes first: what the build has to calibrate with, and what can be promised with it.
    """
    shown = OutcomeReport.of(options.require, options.as_json)
    config = in_milvus(options.build, options.milvus)
    signing_key()  # one that cannot be read is refused now, not when all is done
    published = options.bundles or Path("bundles") / config.name
    with opened_run(config, options.run, reads_trunk=True, prepare=options.prepare) as opened:
        shown.table = opened.directory / EVALUATION_TABLE
        plan = step_of("plan_of")(config)
        for line in plan.lines():
            console.print(line, highlight=False, soft_wrap=True)
        plan.require_feasible()
        if options.dry_run:
            return
        build = with_trunk(config, opened)
        bundle, _ = step_of("build_all")(build, opened, published, shown.check)
    shown.show(bundle)
    say_what_is_next(published)

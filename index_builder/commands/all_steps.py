"""``vouch-build all``: every step, from images or vectors to a published bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from index_builder.commands.index_options import declared
from index_builder.commands.options_class import with_options
from index_builder.commands.steps import BundlesOption, RunOption, print_report, step_of
from index_builder.configuration.build import BuildConfig, in_milvus, load_config
from index_builder.configuration.photographs import (
    encoder_config,
    gallery_name,
    vectors_config,
)
from index_builder.encoders.resolve import FORMS, resolve_encoder
from index_builder.pipeline.run import Run
from index_builder.progress import console, say_what_is_next, working
from index_builder.storage import Storage, is_url
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

    @property
    def build(self) -> BuildConfig:
        """The build that is asked for; other sources than folders are copied or declared first.

        Raises
        ------
        ConfigError : options contradict each other.
        """
        images, vectors = self.images, self.vectors
        of_vectors = vectors, self.items, self.encoder_name
        untouched = self.labels and not any((images, *of_vectors, self.name, self.encoder))
        if self.config is not None and untouched:
            return load_config(self.config)
        if self.config is None and vectors is not None and self.labels and images is None:
            return self._of_vectors(vectors)
        if self.config is None and images is not None and not any(of_vectors):
            return self._of_images(images)
        raise ConfigError(_EITHER)

    def _of_images(self, images: str) -> BuildConfig:
        folder = self._folder(images)
        with working("loading the encoder"):
            encoder = resolve_encoder(self.encoder)
            n_features = _n_features(encoder)
        return encoder_config(folder, encoder, n_features, self.name, labelled=self.labels)

    def _of_vectors(self, table: Path) -> BuildConfig:
        """Return the build of a table of vectors, whose encoder may only be named."""
        from index_builder.vectors.table import open_table  # noqa: PLC0415 - slow

        if (self.encoder is None) == (self.encoder_name is None):
            raise ConfigError(
                "--vectors needs --encoder-name, or an --encoder that takes vectors. Give one."
            )
        if self.encoder is None:
            run = self._run(self.name or gallery_name(table.stem))
            encoder = declared(run, open_table(table), str(self.encoder_name))
        else:
            encoder = resolve_encoder(self.encoder)
        made_by, n_features = self.encoder_name or encoder.name, _n_features(encoder)
        return vectors_config(table, self.items, encoder, made_by, n_features, self.name)

    def _folder(self, images: str) -> Path:
        """Return a folder of images; any other source is copied into the run's directory first."""
        path = Path(images).expanduser()
        if not is_url(images) and (path.is_dir() or not path.exists()):
            return Path(images)
        from index_builder.indexing.local_copy import copy_images  # noqa: PLC0415 - slow
        from index_builder.indexing.sources import name_of  # noqa: PLC0415

        called = name_of(images)
        run = Run(self._run(self.name or gallery_name(called)))
        folder = run.directory / "images" / called
        with run.occupied(), working("copying images"):
            left_out = copy_images(images, folder, Storage(), labelled=self.labels)
        for sentence in left_out.sentences:
            console.print(f"[yellow]{escape(sentence)}[/yellow]", soft_wrap=True)
        return folder

    def _run(self, name: str) -> Path:
        return self.run or Path("runs") / name


@with_options(AllOptions)
def all_command(options: AllOptions) -> None:
    """Run every step, from images or vectors to a published bundle, and print its evaluation.

    The plan comes first: what the build has to calibrate with, and what can be promised with it.
    """
    build = in_milvus(options.build, options.milvus)
    opened = Run(options.run or Path("runs") / build.name)
    published = options.bundles or Path("bundles") / build.name
    with opened.occupied():
        plan = step_of("plan_of")(build)
        for line in plan.lines():
            console.print(line, highlight=False, soft_wrap=True)
        plan.require_feasible()
        if options.dry_run:
            return
        bundle, report = step_of("build_all")(build, opened, published)
    print_report(report)
    print(bundle)
    say_what_is_next(published)


def _n_features(encoder: Path) -> int:
    """Return the size of an encoder's penultimate layer."""
    from index_builder.vectors.encoder_file import find_encoder  # noqa: PLC0415 - slow
    from model_store.encoder.onnx import OnnxEncoder  # noqa: PLC0415

    return OnnxEncoder(find_encoder(encoder), "cpu", threads=1).n_features

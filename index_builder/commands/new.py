"""``vouch-build new``: an empty gallery."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from index_builder.commands.steps import BundlesOption
from index_builder.configuration.defaults import ENCODER_IN_THE_BOX
from index_builder.encoders.resolve import ENCODERS, FORMS, resolve_encoder
from index_builder.progress import say_what_is_next, working
from model_store.bundles.directory import name_problem
from model_store.errors import UsageError


def new_command(
    name: Annotated[str, typer.Argument(help="Name of the gallery.")],
    encoder: Annotated[
        str | None,
        typer.Option(
            help=f"Encoder of the gallery: {FORMS}; or a path: an exported encoder, a bundle, a "
            "directory of bundles, an .onnx file. [default: MobileNetV2, which comes with Vouch]"
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="Description of the gallery.")] = "",
    bundles: BundlesOption = None,
) -> None:
    """Publish an empty gallery; add its items on the page, over HTTP or with `items put`.

    The gallery has no calibration, so each verdict is `not_calibrated`. If you already have the
    images, use `all` or `index`.
    """
    if (problem := name_problem(name)) is not None:
        raise UsageError(problem)
    published = bundles or Path("bundles") / name
    with working("publishing"), TemporaryDirectory() as place:
        from index_builder.indexing.new_gallery import new_gallery  # noqa: PLC0415 - slow

        is_built_in = encoder in {None, ENCODER_IN_THE_BOX}
        directory = Path(place) if is_built_in else ENCODERS  # its file is only needed here
        bundle = new_gallery(published, name, resolve_encoder(encoder, directory), description)
    print(bundle)
    say_what_is_next(published)

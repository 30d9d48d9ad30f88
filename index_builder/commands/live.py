"""Commands on galleries in service: new, items, compact, backup, restore; reviewer decisions.

No command needs torch. Modules are imported late, because the help of the commands does not need
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from index_builder.commands.command_line import CommandLine
from index_builder.commands.steps import BundlesOption
from index_builder.configuration.defaults import ENCODER_IN_THE_BOX
from index_builder.encoders import ENCODERS, FORMS, resolve_encoder
from index_builder.output import write_output
from index_builder.progress import error_console, say_what_is_next, track_parts, working
from model_store.bundles.directory import locate, name_problem
from model_store.errors import (
    ConfigError,
    ImageError,
    NoEmbedding,
    UsageError,
    VouchError,
    WriteError,
)
from model_store.items import check_item_id, check_metadata, check_new_label

if TYPE_CHECKING:
    from model_store.bundles.backup import Summaries
    from model_store.bundles.bundle import Bundle
    from model_store.gallery import Upsert, Writable

PUT_TOGETHER = 32
"""Number of items per transaction; an interrupted command keeps finished transactions."""

Root = Annotated[Path, typer.Argument(help="The directory of bundles.")]

items_app = CommandLine(help="Put items into a live gallery, label and delete items.")


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
        from index_builder.indexing.assemble import new_gallery  # noqa: PLC0415 - slow

        is_built_in = encoder in {None, ENCODER_IN_THE_BOX}
        directory = Path(place) if is_built_in else ENCODERS  # its file is only needed here
        bundle = new_gallery(published, name, resolve_encoder(encoder, directory), description)
    print(bundle)
    say_what_is_next(published)


@items_app.command("put")
def put_command(
    directory: Root,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    item_id: Annotated[
        str | None,
        typer.Option(
            "--id", help="Id of the item, for a single image. [default: the path as given]"
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label of the images.")] = None,
    metadata: Annotated[str, typer.Option(help="Metadata of each item, a JSON object.")] = "{}",
) -> None:
    """Put images into the current gallery; running services find the images within seconds."""
    if item_id is not None and len(images) != 1:
        raise UsageError(
            f"--id needs a single image, but {len(images)} images were given. Without --id, the id "
            "of each item is its path."
        )
    from index_builder.configuration.environment import open_with_access  # noqa: PLC0415

    if item_id is not None:
        _checked(item_id)
    _check_label(label)
    known = _metadata(metadata)
    bundle = open_with_access(directory)
    live = bundle.require_live()
    n_put = refused = 0
    for start in track_parts(len(images), PUT_TOGETHER, "putting"):
        upserts = []
        for path in images[start : start + PUT_TOGETHER]:
            try:
                name = item_id or _checked(path.as_posix())
                upserts.append(_upsert(bundle, path, name, label, known))
            except (ImageError, NoEmbedding, UsageError, OSError) as error:
                refused += 1
                said = f"{path}: {error}"
                error_console.print(said, markup=False, highlight=False, soft_wrap=True)
        if upserts:
            with _saying_what_is_put(n_put, len(images)):
                live.commit(upserts)
            n_put += len(upserts)
    print(f"{n_put} items put, the gallery has {live.snapshot().n_items}")
    if refused:
        raise typer.Exit(1)


@contextmanager
def _saying_what_is_put(n_put: int, n_images: int) -> Iterator[None]:
    """Add the number of images in finished transactions to the error of a transaction."""
    try:
        yield
    except VouchError as error:
        said = f"{n_put:,} of {n_images:,} images were put before"
        if n_put == 0:
            raise
        if not isinstance(error, WriteError):  # the database is not available
            error.add_note(f"{said} this error.")
            raise
        why = str(error).replace("Nothing was changed", "The other images were not put")
        raise WriteError(f"{said} an error: {why}") from error


@items_app.command("delete")
def delete_command(
    directory: Root, ids: Annotated[list[str], typer.Argument(help="Ids of the items.")]
) -> None:
    """Delete items from the current gallery; if an item is missing, nothing is deleted."""
    from model_store.gallery import Delete  # noqa: PLC0415

    live = _writable(directory)
    live.commit([Delete(item_id) for item_id in ids])
    print(f"{len(ids)} items deleted, the gallery has {live.snapshot().n_items}")


@items_app.command("label")
def label_command(
    directory: Root,
    ids: Annotated[list[str], typer.Argument(help="Ids of the items.")],
    label: Annotated[str, typer.Option(help="The new label; an empty text removes the label.")],
) -> None:
    """Change the label of items; their pictures stay. If an item is missing, no item is changed."""
    from model_store.gallery import Edit  # noqa: PLC0415

    _check_label(label)
    _writable(directory).commit([Edit(item_id, {"label": label or None}) for item_id in ids])
    print(f"{len(ids)} items labelled")


def _writable(directory: Path) -> Writable:
    """Open the current gallery of a directory for writing; no encoder is opened."""
    from index_builder.configuration.environment import database_access  # noqa: PLC0415
    from model_store.bundles.changes import open_writable  # noqa: PLC0415
    from model_store.gallery import open_gallery  # noqa: PLC0415

    current = locate(directory)
    return open_writable(directory, current, open_gallery(current, database_access()))


def compact_command(directory: Root) -> None:
    """Publish the current bundle and its live changes as a new bundle; services switch to it.

    If the changes affect the calibration, the gallery is recalibrated with the queries stored in
    the bundle.
    """
    from index_builder.configuration.environment import (  # noqa: PLC0415
        open_with_access,
        signing,
    )
    from model_store.bundles.compaction import Compaction  # noqa: PLC0415

    bundle = open_with_access(directory)
    live = bundle.require_log()
    if live.snapshot().version == live.log.start():
        print(f"{bundle.directory.name} has no changes")
        return
    calibrate, retriever = None, bundle.retriever
    before = retriever.calibration
    if before is not None and (retriever.stale is not None or retriever.has_other_labels):
        from index_builder.indexing.recalibrate import calibration_of  # noqa: PLC0415 - slow

        calibrate = calibration_of(before, {})
    compaction = Compaction(directory, bundle.manifest, live, signing(), calibrate)
    with working("compacting"), compaction:
        published = compaction.publish()
    print(published)


def backup_command(
    directory: Root, archive: Annotated[Path, typer.Argument(help="File to write.")]
) -> None:
    """Write the galleries of a directory, with their live changes, to one file.

    The directory is a directory of bundles, with the galleries that were created over HTTP in it,
    or the folder of such galleries. Services keep running.
    """
    from model_store.bundles.backup import back_up  # noqa: PLC0415

    with working("writing"):
        summaries = back_up(directory, archive)
    _say(summaries)


def restore_command(
    archive: Annotated[Path, typer.Argument(help="Backup file from `backup`.")],
    directory: Annotated[Path, typer.Argument(help="Directory of bundles to create.")],
) -> None:
    """Verify each byte of a backup, and restore it to a new directory of bundles."""
    from model_store.bundles.backup import restore  # noqa: PLC0415

    with working("verifying"):
        summaries = restore(archive, directory)
    _say(summaries)


def _checked(item_id: str) -> str:
    try:
        return check_item_id(item_id)
    except ValueError as error:
        raise UsageError(f"The id {error}. Name another with --id.") from error


def _check_label(label: str | None) -> None:
    try:
        if label:  # an empty text is no label
            check_new_label(label)
    except ValueError as error:
        raise UsageError(f"The label {error}. Name another with --label.") from error


def _upsert(
    bundle: Bundle, path: Path, item_id: str, label: str | None, metadata: dict[str, object]
) -> Upsert:
    from model_store.gallery import NewItem, Thumbnail, Upsert, Vector  # noqa: PLC0415
    from model_store.images import (  # noqa: PLC0415
        decode_image,
        encode_preview,
        encode_thumbnail,
    )

    retriever, data = bundle.retriever, path.read_bytes()
    smallest_side = retriever.encoder.metadata.preprocessing.smallest_side
    decoded = decode_image(data, smallest_side=smallest_side)
    embedded = retriever.encoder.encode(retriever.prepare(decoded)[None])
    embedded.require_usable()
    thumbnail = Thumbnail(*encode_thumbnail(decoded.pixels))
    preview = encode_preview(
        decoded.pixels,
        retriever.gallery.preview_side,
        lambda side: decode_image(data, smallest_side=side).pixels,
    )
    item = NewItem(item_id, label, metadata, thumbnail, preview)
    return Upsert(item, Vector(embedded.mean[0], embedded.variance[0], embedded.features[0]))


def _metadata(text: str) -> dict[str, object]:
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--metadata {text!r} is not JSON ({error}). Give an object: '{{\"year\": 1990}}'."
        ) from error
    if not isinstance(metadata, dict):
        raise UsageError(
            f"--metadata {text!r} is not a JSON object. Give an object: '{{\"year\": 1990}}'."
        )
    try:
        return check_metadata(metadata)
    except ValueError as error:
        raise UsageError(f"--metadata {text!r} {error}.") from error


def _say(summaries: Summaries) -> None:
    for place, summary in summaries.items():
        where = "" if place == "." else f"{place}: "
        said = f"bundle {summary.bundle_id}, {summary.n_items} items, {summary.version} changes"
        print(where + said)


Kept = Annotated[Path, typer.Argument(help="Feedback file of the service (VOUCH_FEEDBACK).")]

feedback_app = CommandLine(help="Export and import reviewer decisions.")


@feedback_app.command("export")
def export_command(
    kept: Kept,
    out: Annotated[Path, typer.Argument(help="File to write, .csv or .jsonl.")],
    gallery: Annotated[str, typer.Option(metavar="NAME", help="Name of the gallery.")],
) -> None:
    """Write all decisions on a gallery, oldest first, including withdrawn decisions."""
    from model_store.feedback import FeedbackLog, require_feedback_file  # noqa: PLC0415 - slow
    from model_store.feedback.decisions import to_csv, to_jsonl  # noqa: PLC0415

    write = {".csv": to_csv, ".jsonl": to_jsonl}[_suffix(out)]
    require_feedback_file(kept)
    log = FeedbackLog(kept)
    found = log.decided(gallery)
    others = [] if found else log.galleries()
    if others:
        raise ConfigError(
            f"{kept} has no decisions on {gallery!r}; it has decisions on "
            f"{', '.join(map(repr, others))}."
        )
    write_output(out, write(found))
    print(f"{len(found)} decisions written")


@feedback_app.command("import")
def import_command(
    kept: Kept, file: Annotated[Path, typer.Argument(help="File of decisions, .csv or .jsonl.")]
) -> None:
    """Import new decisions from a file; if a line is wrong, no decision is imported."""
    from model_store.feedback import FeedbackLog, require_feedback_file  # noqa: PLC0415 - slow
    from model_store.feedback.decisions import from_csv, from_jsonl  # noqa: PLC0415

    read = {".csv": from_csv, ".jsonl": from_jsonl}[_suffix(file)]
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    decided = read(text)
    if kept.exists():
        require_feedback_file(kept)
    print(f"{FeedbackLog(kept).bring(decided)} of {len(decided)} decisions are new")


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".jsonl"}:
        raise UsageError(f"{path} has neither suffix .csv nor .jsonl. Name another file.")
    return suffix

"""Galleries built from Python, as ``vouch-build`` builds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from index_builder.commands.all_steps import AllOptions, run_all
from index_builder.commands.command_line import limits_of
from index_builder.commands.index import IndexOptions, run_index
from index_builder.commands.outcome import OutcomeReport
from index_builder.progress import console, messages_shown, set_output
from vouch_search.gallery import Gallery, open_gallery, opened
from vouch_search.protocol import require_path

Place = str | os.PathLike[str]
OptionsT = TypeVar("OptionsT", AllOptions, IndexOptions)


def build(
    images: Place,
    *,
    root: Place | None = None,
    encoder: Place | None = None,
    name: str | None = None,
    labels: bool = True,
    require: str | None = None,
    bundles: Place | None = None,
    run: Place | None = None,
    progress: bool = True,
) -> Gallery:
    """Build and calibrate a gallery, as ``vouch-build all`` does, and open it.

    Parameters
    ----------
    images : a folder with a sub-folder of images for each label; or a manifest, an archive, a URL.
    root : folder or URL that the paths of a manifest are relative to; if None, the manifest's own
        folder.
    encoder : a name such as ``timm:NAME``, or the path of an encoder; if None, the built-in encoder
        is used.
    name : name of the gallery; if None, the name of the folder is used.
    labels : whether the sub-folders are labels.
    require : conditions on the measured quality, such as ``recall_at_1>=0.8``; if a condition is
        not met, nothing is published.
    bundles : directory in which the bundle is published; ``bundles/<name>`` if None.
    run : working directory; ``runs/<name>`` if None.
    progress : show the plan, the steps and the outcome on standard error.

    Raises
    ------
    TypeError : an argument has a wrong type; the message names the argument.
    VouchError : the images cannot be read, there is too little evidence, or a limit is not met.
    """
    options = _options(
        AllOptions,
        images=_text("images", images),
        root=None if root is None else _text("root", root),
        encoder=None if encoder is None else _text("encoder", encoder),
        name=name,
        labels=labels,
        require=require,
        bundles=bundles,
        run=run,
    )
    shown = OutcomeReport.of(options.require, as_json=False)
    with _output(progress=progress):
        built = run_all(options, shown)
        assert built is not None  # noqa: S101 - no dry run
        shown.show()
    return open_gallery(built[0])


def index(
    images: Place,
    *,
    encoder: Place | None = None,
    name: str | None = None,
    calibrate: bool = True,
    require: str | None = None,
    bundles: Place | None = None,
    run: Place | None = None,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - as the command takes them
) -> Gallery:
    """Index images with a given encoder, as ``vouch-build index`` does, and open the gallery.

    Parameters
    ----------
    calibrate : fit probabilities and verdicts; the images are also the queries.
    **options : further options of ``vouch-build index``, with underscores: ``max_error=0.02``.
        For the other parameters see `build`.

    Raises
    ------
    TypeError : an argument is unknown or has a wrong type; the message names the argument.
    ValueError : an argument is not one of its choices.
    VouchError : the images cannot be read, there is too little evidence, or a limit is not met.
    """
    source = _text("images", images)
    given = _options(
        IndexOptions,
        source=source,
        encoder=None if encoder is None else _text("encoder", encoder),
        name=name,
        calibrate=calibrate,
        require=require,
        bundles=bundles,
        run=run,
        **options,
    )
    given.require_consistent()
    shown = OutcomeReport.of(given.require, as_json=False)
    with _output(progress=progress):
        indexing = given.indexing(source)
        run_index(indexing, shown)
        if shown.outcome is not None:
            shown.show()
    return opened(indexing.bundles, database=indexing.database_uri)


@contextmanager
def _output(*, progress: bool) -> Iterator[None]:
    """Show the messages of ``vouch-build``; afterwards restore the console."""
    before = console.quiet
    try:
        with messages_shown():
            set_output(quiet=not progress)
            yield
    finally:
        console.quiet = before


def _text(name: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(
            f"{name}: received {type(value).__name__} {repr(value)[:80]}, wanted a path or an "
            "address."
        )
    require_path(name, value)
    return str(os.fspath(value))


def _options(command: type[OptionsT], **given: Any) -> OptionsT:  # noqa: ANN401 - checked here
    """Make the options of a command; the types of its fields are the wanted types.

    Raises
    ------
    TypeError, ValueError : an argument is unknown, or its value is wrong.
    """
    wanted = command.model_fields
    for name in given:
        if name not in wanted:
            raise TypeError(f"{name}: is not an option. Options: {', '.join(wanted)}.")
    values = {name: _value(name, one, wanted[name].annotation) for name, one in given.items()}
    for name, value in values.items():
        _require_in_range(name, value, wanted[name])
    return command(**values)


def _require_in_range(name: str, value: object, option: FieldInfo) -> None:
    """Raise `ValueError` if the command line would refuse the value as too small or too large."""
    least, most = limits_of(option)
    if isinstance(value, int | float) and not (
        (least is None or value >= least) and (most is None or value <= most)
    ):
        limits = [] if least is None else [f"at least {least:g}"]
        limits += [] if most is None else [f"at most {most:g}"]
        raise ValueError(f"{name}: {value} is out of range; wanted {' and '.join(limits)}.")


def _value(name: str, value: object, wanted: Any) -> Any:  # noqa: ANN401 - an annotation
    """Return a value with the wanted type; a text may name a path or a choice."""
    types = get_args(wanted) or (wanted,)
    if Path in types and value is not None:
        return Path(_text(name, value)).expanduser()
    if name == "root" and value is not None:  # a folder or an address
        return _text(name, value)
    try:
        return TypeAdapter(wanted).validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    kind = ValueError if problem["type"] == "literal_error" else TypeError
    raise kind(f"{name}: {problem['msg']} (received {type(value).__name__} {str(value)[:80]!r}).")

"""The commands ``vouch-build push`` and ``vouch-build pull``; they do not need torch.

Modules are imported late, because the help of the commands does not need them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from index_builder.configuration.signing import BUNDLE_KEYS_VARIABLE, trusted_keys
from index_builder.progress import console, say_what_is_next, working
from model_store.bundles.directory import locate
from model_store.lists import as_list

ADDRESS = "A directory of bundles, s3://BUCKET/PREFIX (or gs://, az://), or hf://OWNER/NAME."


def push_command(
    bundle: Annotated[
        Path, typer.Argument(help="A bundle, or a directory of bundles with a current bundle.")
    ],
    destination: Annotated[str, typer.Argument(help=ADDRESS)],
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="If the repository on the Hub is new, make it public. A bundle contains "
            "thumbnails of its images.",
        ),
    ] = False,
) -> None:
    """Verify a bundle, and copy it to a place from which other machines can pull it.

    An interruption changes no bundle at the destination. The same command continues the copy.
    """
    from index_builder.exchange.address import place_at  # noqa: PLC0415
    from model_store.bundles.changes import changes_path  # noqa: PLC0415
    from model_store.bundles.manifest import read_manifest  # noqa: PLC0415
    from model_store.bundles.retention import Hold  # noqa: PLC0415

    directory = locate(bundle)
    place = place_at(destination, public=public)
    with Hold(directory):
        with working("verifying"):
            manifest = read_manifest(directory)
        if directory != bundle and changes_path(bundle, manifest.id).exists():
            console.print(
                "Live changes of the gallery are not pushed. `vouch-build compact` writes them to "
                "a new bundle."
            )
        sent = place.put(directory, manifest)
    print(sent)


def pull_command(
    source: Annotated[str, typer.Argument(help=f"{ADDRESS} On the Hub, @REVISION may follow.")],
    directory: Annotated[
        Path | None,
        typer.Argument(
            help="The directory of bundles to pull into. [default: bundles/ followed by the last "
            "part of the source]"
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="Public keys; the bundle must be signed with one of the keys. [default: the keys "
            f"of {BUNDLE_KEYS_VARIABLE}]"
        ),
    ] = None,
    keep_current: Annotated[
        bool,
        typer.Option("--keep-current", help="Do not make the pulled bundle the current bundle."),
    ] = False,
) -> None:
    """Fetch a bundle, verify each byte and its signature, and make it current.

    An interruption leaves no incomplete bundle. The same command fetches the missing files.
    """
    from index_builder.exchange.address import last_part, place_at  # noqa: PLC0415
    from index_builder.exchange.pull import pull  # noqa: PLC0415

    root = directory or Path("bundles") / last_part(source)
    keys = trusted_keys([Path(file) for file in as_list(trust or [])])
    with working("pulling"):
        pulled = pull(place_at(source), root, keys, activated=not keep_current)
    print(pulled)
    say_what_is_next(root)

"""``vouch-mcp``: a server of the Model Context Protocol, for assistants that handle images."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from model_store.programs import add_global_options, interruptible, parser_of
from model_store.text_values import lower_scheme, split_address, split_list

API_KEY_VARIABLE = "VOUCH_API_KEY"

STATUSES = """\
Exit status:
  0    the assistant closed the connection
  1    an error
  2    an unknown or invalid option
  130  interrupted by Ctrl+C"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the tools on standard input and output; the assistant starts this process."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        split_address(lower_scheme(options.url), ("http", "https"))
    except ValueError as error:
        parser.error(f"--url {error}")
    folders = [Path(name) for text in options.images for name in split_list(text)]
    for folder in folders:
        if not folder.is_dir():
            parser.error(f"--images {folder}: there is no such directory.")
    with interruptible():
        from service.client.client import VouchClient  # noqa: PLC0415 - a second, with mcp
        from service.client.mcp_tools import mcp_server  # noqa: PLC0415

        try:
            client = VouchClient(options.url, os.environ.get(API_KEY_VARIABLE) or None)
        except ValueError as error:
            parser.error(f"{API_KEY_VARIABLE}: {error}")
        with client:
            mcp_server(client, folders).run("stdio")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vouch-mcp",
        description="Serve searches of a Vouch service to an assistant, by the Model Context\n"
        "Protocol on standard input and output.\n\n"
        f"The API key, if the service needs one, is in {API_KEY_VARIABLE}.",
        epilog=STATUSES,
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        default="http://127.0.0.1:8080",
        help="Address of the service. [default: http://127.0.0.1:8080]",
    )
    parser.add_argument(
        "--images",
        metavar="DIRECTORY,...",
        action="append",
        default=[],
        help="Directories of this machine from which images may be read and sent. [default: none; "
        "only images in base64 are taken]",
    )
    add_global_options(parser)
    return parser


if __name__ == "__main__":
    main()

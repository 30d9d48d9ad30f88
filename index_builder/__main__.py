"""Start ``vouch-build``, the command line of the index builder; see `index_builder.commands`."""

from __future__ import annotations

import errno
import logging
import sys

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from index_builder.commands.app import app
from index_builder.progress import console
from model_store.errors import VouchError
from model_store.memory import OF_INDEXING, tune_malloc

_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def main() -> None:
    """Entry point; an error of the family is one line on standard error and exit status 1.

    So is one of a disk that is full, or that nobody may write to, wherever it comes from.
    """
    handler = RichHandler(console=console, show_time=False, show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    tune_malloc(OF_INDEXING)
    try:
        app()
    except VouchError as error:
        _complain(str(error))
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _complain(
            f"{where}{error.strerror}. Make room or give permission there, or name another "
            "directory; then run the same command again."
        )


def _complain(what: str) -> None:
    # Escaped: a path or a table's name in brackets would be taken for markup.
    said = f"[red]error:[/red] {escape(what)}"
    Console(stderr=True).print(said, highlight=False, soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    main()

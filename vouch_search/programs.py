"""Entry points of the installed programs; each imports its code when it starts."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def build() -> None:
    """Start ``vouch-build``."""
    _require("typer", "build")
    from index_builder.__main__ import main  # noqa: PLC0415 - of this program alone

    main()


def serve() -> None:
    """Start ``vouch-serve``."""
    _require("limits", "serve")
    from service.__main__ import main  # noqa: PLC0415 - of this program alone

    main()


def keys() -> None:
    """Start ``vouch-keys``."""
    _require("limits", "serve")
    from service.access.command import main  # noqa: PLC0415 - of this program alone

    main()


def mcp() -> None:
    """Start ``vouch-mcp``."""
    _require("mcp", "mcp")
    from service.client.mcp_server import main  # noqa: PLC0415 - of this program alone

    main()


def _require(module: str, extra: str) -> None:
    """End the program if ``module`` is not installed, and name the ``extra`` that installs it.

    Raises
    ------
    SystemExit : with the message, status 1.
    """
    if find_spec(module) is None:
        from model_store.installation import how_to_install  # noqa: PLC0415 - rarely needed

        sys.exit(f"error: {module} is not installed. {how_to_install(extra)}")

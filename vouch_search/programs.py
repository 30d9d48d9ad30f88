"""Entry points of the installed programs; each imports its code when it starts."""

from __future__ import annotations


def build() -> None:
    """Start ``vouch-build``."""
    from index_builder.__main__ import main  # noqa: PLC0415 - of this program alone

    main()


def serve() -> None:
    """Start ``vouch-serve``."""
    from service.__main__ import main  # noqa: PLC0415 - of this program alone

    main()


def keys() -> None:
    """Start ``vouch-keys``."""
    from service.access.command import main  # noqa: PLC0415 - of this program alone

    main()


def mcp() -> None:
    """Start ``vouch-mcp``."""
    from service.client.mcp_server import main  # noqa: PLC0415 - of this program alone

    main()

"""The health check of a container: requests ``/readyz`` of the service on this machine.

The check runs every few seconds beside each replica. Therefore this module imports only fast
modules, and reads only three settings.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import sys
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NoReturn

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080

TIMEOUT_S = 4.0
"""Timeout of the check in seconds, shorter than the container's timeout for the check."""

SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
"""The beginning of the value of ``VOUCH_PORT`` that Kubernetes sets if a Service is named vouch."""


def address_in(variables: Mapping[str, str]) -> tuple[str, int, bool]:
    """Return host, port, and whether HTTPS is used, from the service's environment variables.

    Raises
    ------
    ValueError : ``VOUCH_PORT`` is not a port.
    """
    found = {name.lower(): value for name, value in variables.items() if value}
    folder = found.get("vouch_secrets_dir")
    if folder and Path(folder).is_dir():
        with suppress(OSError):  # the service reports this error when it starts
            for path in Path(folder).iterdir():
                if path.name.lower() in {"vouch_host", "vouch_port", "vouch_tls_cert"}:
                    found.setdefault(path.name.lower(), path.read_text("utf-8").strip())
    port = found.get("vouch_port", "")
    if not port or SERVICE_LINK.match(port):
        port = str(DEFAULT_PORT)
    return found.get("vouch_host", DEFAULT_HOST), int(port), "vouch_tls_cert" in found


def check(host: str, port: int, *, is_https: bool) -> None:
    """Ask ``/readyz``.

    Raises
    ------
    SystemExit : status 1 if the service is not ready or does not answer.
    """
    host = host.removeprefix("[").removesuffix("]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    connection: http.client.HTTPConnection | None = None
    try:
        if is_https:  # the certificate names the public host, and this request goes to localhost
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not a host
        _end(f"{host}, port {port}, does not answer: {error}. Start the service there.")
    finally:
        if connection is not None:
            connection.close()
    if answer.status != HTTPStatus.OK:
        _end(f"The service is not ready: {text[:500]}")


def check_by_environment() -> None:
    """Check the service with the environment variables of this process."""
    try:
        host, port, is_https = address_in(os.environ)
    except ValueError:
        _end("VOUCH_PORT: must be a port, such as 8080.")
    check(host, port, is_https=is_https)


def _end(why: str) -> NoReturn:
    print(f"vouch-serve: {why}", file=sys.stderr)
    sys.exit(1)

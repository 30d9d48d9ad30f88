"""The health check of a container: asks ``/readyz`` of the service on this machine.

It runs every few seconds beside each replica, so it imports nothing that takes long: it reads the
three settings that it needs, in place of all of them.
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
"""The timeout of a health check, shorter than the container's own."""

SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
"""The beginning of the value of ``VOUCH_PORT`` in a pod beside a Service named vouch."""


def address_in(variables: Mapping[str, str]) -> tuple[str, int, bool]:
    """Return host and port of the service that these variables start, and whether it has HTTPS.

    Raises
    ------
    ValueError : ``VOUCH_PORT`` is no port.
    """
    found = {name.lower(): value for name, value in variables.items() if value}
    folder = found.get("vouch_secrets_dir")
    if folder and Path(folder).is_dir():
        with suppress(OSError):  # the service reports it, and does not start
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
    SystemExit : with status 1, the service is not ready or does not answer.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    if is_https:  # the certificate names the host that clients ask; this is the same machine
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        _end(f"{host}, port {port}, does not answer: {error}. Start the service there.")
    finally:
        connection.close()
    if answer.status != HTTPStatus.OK:
        _end(f"The service is not ready: {text[:500]}")


def check_by_environment() -> None:
    """Ask the service that the variables of this process start."""
    try:
        host, port, is_https = address_in(os.environ)
    except ValueError:
        _end("VOUCH_PORT: must be a port, such as 8080.")
    check(host, port, is_https=is_https)


def _end(why: str) -> NoReturn:
    print(f"vouch-serve: {why}", file=sys.stderr)
    sys.exit(1)

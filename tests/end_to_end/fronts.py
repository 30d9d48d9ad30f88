"""Proxies in front of a service: nginx and HAProxy, as they come and as they are shipped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.end_to_end.processes import Process, free_port, wait_until
from tests.support.certificates import write_certificate

DOCKER = Path(__file__).parents[2] / "docker"

PLACES = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
PROGRAMS = {name: shutil.which(name, path=PLACES) for name in ("nginx", "haproxy")}

STOCK_NGINX = """
events {}
http { server { listen 127.0.0.1:FRONT; client_max_body_size 200m;
  location / { proxy_pass http://127.0.0.1:8080; }
  location /vouch/ {
    proxy_pass http://127.0.0.1:8080/;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_set_header X-Forwarded-Prefix /vouch;
  }
} }
"""
STOCK_HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:FRONT
  default_backend back
backend back
  server one 127.0.0.1:8080
"""


def _shipped_nginx(ports: Sequence[int]) -> str:
    """The shipped configuration without TLS, in front of services on these ports."""
    text = re.sub(r"listen 443 ssl http2;", "listen 127.0.0.1:FRONT;", _nginx_before(ports))
    return re.sub(r" *ssl_\w+ [^;]*;\n", "", text)


def _shipped_nginx_below_a_path(ports: Sequence[int]) -> str:
    """The shipped configuration with TLS and HTTP/2, as its comment below a path says."""
    text = _nginx_before(ports)
    text = text.replace("listen 443 ssl http2;", "listen 127.0.0.1:FRONT ssl http2;")
    text = text.replace("/etc/nginx/", "FOLDER/")
    text = text.replace('X-Forwarded-Prefix "";', "X-Forwarded-Prefix /vouch;")
    above, comment, below = text.partition("    # the two locations above:\n")
    assert comment
    above, n_removed = re.subn(
        r"^    location [~/].*?^    \}\n", "", above, flags=re.MULTILINE | re.DOTALL
    )
    assert n_removed == 2
    return above + re.sub(r"^    # ?", "    ", below, flags=re.MULTILINE)


def _nginx_before(ports: Sequence[int]) -> str:
    """The shipped configuration, with the services on these ports for the one that it names."""
    text = (DOCKER / "nginx.conf").read_text(encoding="utf-8")
    server = re.search(r"server 127\.0\.0\.1:8080 ([^;]*);", text)
    assert server is not None
    return text.replace(server[0], "".join(f"server 127.0.0.1:{p} {server[1]};" for p in ports))


def _shipped_haproxy(ports: Sequence[int]) -> str:
    """The shipped configuration, in front of services on these ports."""
    text = (DOCKER / "balancer.cfg").read_text(encoding="utf-8")
    text = text.replace("bind :8080", "bind 127.0.0.1:FRONT")
    for template, limit in re.findall(r"(server-template .*(maxconn \d+) resolvers.*)", text):
        servers = (f"server s{port} 127.0.0.1:{port} {limit}" for port in ports)
        text = text.replace(template, "\n  ".join(servers))
    return text


def _stock(text: str) -> Callable[[Sequence[int]], str]:
    return lambda ports: text.replace("127.0.0.1:8080", f"127.0.0.1:{ports[0]}")


FRONTS: dict[str, tuple[str, Callable[[Sequence[int]], str]]] = {
    "stock nginx": ("nginx", _stock(STOCK_NGINX)),
    "stock HAProxy": ("haproxy", _stock(STOCK_HAPROXY)),
    "shipped nginx": ("nginx", _shipped_nginx),
    "shipped HAProxy": ("haproxy", _shipped_haproxy),
}
BELOW_A_PATH = "shipped nginx, TLS, HTTP/2, /vouch"
ALL_FRONTS = FRONTS | {BELOW_A_PATH: ("nginx", _shipped_nginx_below_a_path)}


class Front(Process):
    """A proxy in front of the services on ``ports``, on a ``port`` of its own."""

    def __init__(self, kind: str, ports: Sequence[int], folder: Path) -> None:
        program, configure = ALL_FRONTS[kind]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        if kind == BELOW_A_PATH:
            self.url = f"https://127.0.0.1:{self.port}/vouch"
            write_certificate(folder / "cert.pem", folder / "key.pem")
        text = configure(ports).replace("127.0.0.1:FRONT", f"127.0.0.1:{self.port}")
        text = text.replace("FOLDER", str(folder))
        command = [str(PROGRAMS[program]), "-f"]
        if program == "nginx":
            kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
            user = "user root;" if os.geteuid() == 0 else ""
            head = f"daemon off; {user} pid {folder}/pid; error_log {folder}/errors;"
            text = head + text.replace("http {", f"http {{ access_log off; {paths}", 1)
            command = [str(PROGRAMS[program]), "-p", str(folder), "-c"]
        file = folder / "front.conf"
        file.write_text(text, encoding="utf-8")
        variables = {"VOUCH_TRUSTED_PROXY": "192.0.2.1"}
        super().__init__([*command, str(file)], folder / "front.log", {**os.environ, **variables})
        wait_until(self._listens, self)

    def __exit__(self, *_: object) -> None:
        self.send(signal.SIGTERM)
        self.popen.wait()

    def _listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

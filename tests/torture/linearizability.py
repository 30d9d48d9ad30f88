"""``make torture NAME=linearizability``: two services on one gallery must answer as one would.

Clients put, delete, show and search items at both; the gallery is compacted every few seconds,
other bundles are published, and the services are killed (SIGKILL) and started again. Every history
of an item is checked: is there an order of what was asked in which every answer is right?

With ``--postgres``, a PostgreSQL server is started, which has the gallery; the services have copies
of the bundle, as on two machines. Nothing is compacted or published.

    python -m tests.torture.linearizability BUNDLES [--postgres] [--seconds 600] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from model_store.bundles.directory import activate, locate
from tests.end_to_end.replicas import Replicas, replicas_in_postgres
from tests.support.postgres import Postgres

BUILD = Path("build")


def main() -> None:
    """Ask, check, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--postgres", action="store_true", help="with the gallery in PostgreSQL")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--services", type=int, default=2)
    parser.add_argument("--compact-every", type=float, default=4, help="Seconds, on average.")
    parser.add_argument("--kill-every", type=float, default=30, help="Seconds, on average.")
    parser.add_argument("--swap-every", type=float, default=10, help="Seconds, on average.")
    options = parser.parse_args()
    bundle = locate(options.bundles)
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        place = Path(folder)
        compact_every_s, swap_every_s = options.compact_every, options.swap_every
        if options.postgres:
            uri = servers.enter_context(Postgres()).uri
            replicas = replicas_in_postgres(bundle, uri, place, options.seed)
            compact_every_s = swap_every_s = math.inf
        else:
            root = place / "bundles"
            shutil.copytree(bundle, root / bundle.name)
            activate(root, bundle.name)
            log = place / "service.log"
            replicas = Replicas(root, bundle, log, options.seed, options.services)
        replicas.run(options.seconds, compact_every_s, options.kill_every, swap_every_s)
    violations = replicas.violations()
    for item, wrong in violations:
        print(f"{item}: no order explains {wrong}")
        for one in replicas.history(item):
            print(f"    {one}")
    figures = {
        "engine": "PostgreSQL" if options.postgres else "files",
        "seed": options.seed,
        "seconds": options.seconds,
        "operations": replicas.n_operations,
        "violations": len(violations),
        **dict(sorted(replicas.counts.items())),
    }
    text = json.dumps(figures, indent=1)
    (BUILD / "linearizability.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()

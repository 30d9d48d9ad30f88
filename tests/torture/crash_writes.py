"""``make torture NAME=crash-writes``: a service that is killed 50 times while it is written to.

Writers put, replace and delete items, alone and in batches; others search; in half of the rounds
the gallery is compacted. Then the service is killed (SIGKILL) at a random moment and started again.
Every write that was acknowledged must be there, what was under way must be there whole or not at
all and is sent again, and every result must be as similar as NumPy finds the vector of its id.

    python -m tests.torture.crash_writes BUNDLES [--kills 50]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from model_store.bundles.directory import activate, locate
from tests.end_to_end.writes import CrashTest

BUILD = Path("build")


def main() -> None:
    """Kill, check, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    bundle = locate(options.bundles)
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "bundles"
        shutil.copytree(bundle, root / bundle.name)
        activate(root, bundle.name)
        crash = CrashTest(root, bundle, BUILD / "crash-writes.log")
        crash.run(options.kills)
    figures = {"passed": True, **dict(sorted(crash.counts.items()))}
    (BUILD / "crash-writes.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

"""The evaluation of the shipped configurations.

Records the figures of ``bundles/digits`` and ``bundles/fashion-mnist``, of those that were built:
``vouch-build all --config digits`` takes half a minute, ``--config fashion-mnist`` 20 minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks import measured

CONFIGURATIONS = ("digits", "fashion-mnist")


def main() -> None:
    """Record the evaluation of each bundle that is there."""
    for name in CONFIGURATIONS:
        current = Path("bundles") / name / "CURRENT"
        if current.exists():
            bundle = current.parent / current.read_text("utf-8").strip()
            found = json.loads((bundle / "evaluation.json").read_text("utf-8"))
            title = f"{name.title()}, with the shipped configuration"
            command = f"vouch-build all --config {name}"
            module = {"__doc__": title}
            print(measured.record_figures(f"build-{name}", found, module, command))


if __name__ == "__main__":
    main()

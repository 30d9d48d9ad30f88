"""Add to a CycloneDX file the licences that installed packages declare.

    python .ci/licences.py build/sbom.cdx.json

Packages that are not installed here are named at the end.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path


def licence_of(name: str) -> str | None:
    """Return the licence that a package declares; None if it is not installed or declares none."""
    try:
        declared = metadata(name).json
    except PackageNotFoundError:
        return None
    if expression := declared.get("license_expression"):
        return str(expression)
    named = [one for one in declared.get("classifier", []) if one.startswith("License ::")]
    text = str(declared.get("license", "")).strip()
    names = " AND ".join(one.rpartition(" :: ")[2] for one in named)
    return names or (text if 0 < len(text) <= 100 else None)


def main(path: Path) -> None:
    """Rewrite the file."""
    document = json.loads(path.read_text("utf-8"))
    unknown = []
    for component in document["components"]:
        if licence := licence_of(component["name"]):
            component["licenses"] = [{"license": {"name": licence}}]
        else:
            unknown.append(component["name"])
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    n = len(document["components"])
    print(f"{n - len(unknown)} of {n} packages with a licence; unknown: {' '.join(unknown)}")


main(Path(sys.argv[1]))

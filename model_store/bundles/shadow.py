"""The file `SHADOW`. The file names a bundle that is tested beside the current bundle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from model_store.bundles.directory import ACTIVATION_LOCK, is_bundle_id
from model_store.errors import PointerUnreadable
from model_store.files import lock_between_processes, replacing

SHADOW_FILE = "SHADOW"


@dataclass(frozen=True, slots=True)
class ShadowTerms:
    """The id of the tested bundle, and the share of queries that are also sent to it.

    Attributes
    ----------
    share : share of queries that also go to the tested bundle, above 0 and at most 1.
    """

    bundle_id: str
    share: float


def read_shadow(root: Path) -> ShadowTerms | None:
    """Read ``root/SHADOW``; return None if there is no such file.

    Raises
    ------
    PointerUnreadable : the file cannot be read, or its content is invalid.
    """
    try:
        said = json.loads((root / SHADOW_FILE).read_bytes())
        terms = ShadowTerms(said["bundle_id"], float(said["share"]))
        if is_bundle_id(terms.bundle_id) and 0 < terms.share <= 1:
            return terms
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise PointerUnreadable(
        f"{SHADOW_FILE} cannot be read, or has no bundle id and share. Remove it from the "
        "directory of bundles; `PUT /v1/galleries/{gallery}/shadow` writes it again."
    )


def write_shadow(root: Path, terms: ShadowTerms | None) -> None:
    """Write ``root/SHADOW`` atomically; None removes the file.

    A lock excludes other processes, which would write to the same temporary file.

    Raises
    ------
    OSError : the directory cannot be written to.
    """
    with lock_between_processes(root / ACTIVATION_LOCK):
        if terms is None:
            (root / SHADOW_FILE).unlink(missing_ok=True)
            return
        with replacing(root / SHADOW_FILE) as staged:
            staged.write_text(json.dumps(asdict(terms)) + "\n", encoding="ascii")

"""The pointer `SHADOW`: a bundle that is tried beside the current one of a directory."""

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
    """The bundle that is tried, and on how much.

    Attributes
    ----------
    share : of the queries, above 0 and at most 1.
    """

    bundle_id: str
    share: float


def read_shadow(root: Path) -> ShadowTerms | None:
    """Return what ``root/SHADOW`` says; None where there is no such file.

    Raises
    ------
    PointerUnreadable : it cannot be read, or says something else.
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
        f"{SHADOW_FILE} cannot be read, or names no bundle and share. Its operator removes it from "
        "the directory of bundles; `PUT /v1/galleries/{gallery}/shadow` writes it anew."
    )


def write_shadow(root: Path, terms: ShadowTerms | None) -> None:
    """Have ``root/SHADOW`` say this from now on, atomically; None removes it.

    One process at a time does it: two would write to one file before it takes its place.

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

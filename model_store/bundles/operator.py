"""The files `OPERATOR` and `SHADOW`: the operator's decisions on a gallery."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from model_store.errors import ConfigError, PointerUnreadable
from model_store.files import FileMark, file_mark, lock_between_processes, replacing

from .directory import ACTIVATION_LOCK, is_bundle_id, refuse_bundle

OPERATOR_FILE = "OPERATOR"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """The settings of a gallery's operator.

    Attributes
    ----------
    absent_share : share of absent queries (queries without a match in the gallery), in (0, 1). It
        replaces the configured share; None keeps the configured share.
    adopted_at : time when ``absent_share`` was set, ISO 8601.
    acknowledged_at : time when the operator last acknowledged drift, in seconds since 1970; 0 for
        never.
    """

    absent_share: float | None = None
    adopted_at: str | None = None
    acknowledged_at: float = 0.0

    def with_share(self, share: float | None) -> OperatorSettings:
        """Return the settings with the given ``share``; None restores the configured share.

        Raises
        ------
        ConfigError : the share is not between 0 and 1.
        """
        if share is None:
            return replace(self, absent_share=None, adopted_at=None)
        if not 0 < share < 1:
            raise ConfigError(f"A share of absent queries is above 0 and below 1, not {share:g}.")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, absent_share=share, adopted_at=now)

    def acknowledged(self) -> OperatorSettings:
        """Return the settings with the current time in ``acknowledged_at``."""
        return replace(self, acknowledged_at=time.time())

    def to_text(self) -> str:
        """Return the content of the file ``OPERATOR``."""
        return json.dumps(asdict(self)) + "\n"


def read_operator(root: Path) -> OperatorSettings:
    """Read ``root/OPERATOR``; return the defaults if there is no such file.

    Raises
    ------
    PointerUnreadable : the file cannot be read, or its content is invalid.
    """
    try:
        said = json.loads((root / OPERATOR_FILE).read_bytes())
        share, at = said["absent_share"], said["adopted_at"]
        settings = OperatorSettings(
            None if share is None else float(share),
            None if at is None else str(at),
            float(said["acknowledged_at"]),
        )
        if share is None or 0 < settings.absent_share < 1:  # type: ignore[operator] # a number
            return settings
    except FileNotFoundError:
        return OperatorSettings()
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    raise PointerUnreadable(
        f"{OPERATOR_FILE} cannot be read, or its share of absent queries is invalid. Remove the "
        "file from the directory of bundles, and adopt the share again."
    )


def operator_mark(root: Path) -> FileMark | None:
    """Return a mark that changes when ``root/OPERATOR`` changes; None if there is no such file."""
    return file_mark(f"{root}/{OPERATOR_FILE}")


def change_operator(
    root: Path, change: Callable[[OperatorSettings], OperatorSettings]
) -> OperatorSettings:
    """Change ``root/OPERATOR`` atomically, and return the new settings.

    Raises
    ------
    WriteRefused : ``root`` is a bundle. An additional file would make the bundle invalid.
    OSError : the directory cannot be written to.
    """
    refuse_bundle(root)
    with lock_between_processes(root / ACTIVATION_LOCK):
        try:
            settings = read_operator(root)
        except PointerUnreadable:
            settings = OperatorSettings()  # the file is replaced
        settings = change(settings)
        with replacing(root / OPERATOR_FILE) as staged:
            staged.write_text(settings.to_text(), encoding="ascii")
    return settings


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

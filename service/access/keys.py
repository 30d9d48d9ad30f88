"""API keys: created once, stored as hashes in one file, and reloaded when the file changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, TypedDict, Unpack, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from model_store.errors import KeysError, Unauthenticated
from service.settings import RateText

logger = logging.getLogger(__name__)

KeyScope = Literal["read", "review", "write", "admin"]
SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)
"""The scopes, weakest first; a scope includes all scopes before it."""


def allows(held: KeyScope, wanted: KeyScope) -> bool:
    """Return whether the scope ``held`` includes the scope ``wanted``."""
    return SCOPES.index(wanted) <= SCOPES.index(held)


PREFIX = "vouch"
SECRET_BYTES = 32
MAX_NAME = 100
LOOK_AFTER_S = 1.0
"""Seconds between two checks of the file of keys. A revoked key is therefore refused after at most
one second."""


GalleryPattern = Annotated[str, Field(pattern=r"^[a-z0-9*][a-z0-9*._-]{0,63}$")]
"""Pattern of gallery names; `*` matches any characters: ``acme-*``."""


class ApiKey(BaseModel):
    """A stored key: the hash of its secret, its scope and its limits.

    The secret has 256 random bits, which no attacker can guess, so SHA-256 is enough. A slow hash
    protects passwords that people choose; for a random secret, a slow hash would only slow down
    requests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern="^[0-9a-f]{12}$")
    name: str = Field(min_length=1, max_length=MAX_NAME)
    scope: KeyScope
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the secret.")
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    revoked_at: AwareDatetime | None = None
    rate_limit: RateText | None = None
    expected_absent: float | None = Field(
        None, gt=0, lt=1, description="Share of the key's queries without a match."
    )
    galleries: tuple[GalleryPattern, ...] | None = Field(
        None, min_length=1, description="Allowed galleries; `*` matches any characters. None: all."
    )
    searches: RateText | None = None
    max_items: int | None = Field(None, ge=0, description="Maximum items in a gallery.")
    max_galleries: int | None = Field(
        None, ge=0, description="Maximum number of galleries that the key can create."
    )

    def state(self, now: datetime) -> Literal["active", "expired", "revoked"]:
        """Return whether the key is active, expired or revoked at ``now``."""
        if self.revoked_at is not None:
            return "revoked"
        expired = self.expires_at is not None and self.expires_at <= now
        return "expired" if expired else "active"


class KeyOptions(TypedDict, total=False):
    """The options of a new key; see `ApiKey`."""

    expires_at: datetime | None
    rate_limit: str | None
    expected_absent: float | None
    galleries: tuple[str, ...] | None
    searches: str | None
    max_items: int | None
    max_galleries: int | None


class _KeysFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    keys: tuple[ApiKey, ...] = ()


def mint(name: str, scope: KeyScope, **options: Unpack[KeyOptions]) -> tuple[ApiKey, str]:
    """Create a key: return its record for the file, and the key, ``vouch_<id>_<secret>``."""
    key_id, secret = secrets.token_hex(6), secrets.token_hex(SECRET_BYTES)
    kept = ApiKey(
        id=key_id, name=name, scope=scope, sha256=_digest(secret), created_at=_now(), **options
    )
    return kept, f"{PREFIX}_{key_id}_{secret}"


def rotated(key: ApiKey, grace: timedelta) -> tuple[ApiKey, ApiKey, str]:
    """Replace a key; return the old record, the new record, and the text of the new key.

    The old key stays valid for ``grace``. The new key has the same name, scope,
    galleries, limits and lifetime. The search count of the new key begins at 0.
    """
    now = _now()
    if (state := key.state(now)) != "active":
        raise KeysError(f"The key {key.id} is {state}; only an active key is rotated. Create one.")
    life = None if key.expires_at is None else key.expires_at - key.created_at
    options: KeyOptions = key.model_dump(include={*KeyOptions.__annotations__})  # type: ignore[assignment]
    options["expires_at"] = None if life is None else now + life
    new, text = mint(key.name, key.scope, **options)
    ends = now + grace if key.expires_at is None else min(now + grace, key.expires_at)
    return key.model_copy(update={"expires_at": ends}), new, text


def revoked(key: ApiKey) -> ApiKey:
    """Return a revoked copy of the key; the time of an earlier revocation does not change."""
    return key if key.revoked_at else key.model_copy(update={"revoked_at": _now()})


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read the keys in the file at ``path``.

    Raises
    ------
    KeysError : the file is missing, unreadable or damaged.
    """
    try:
        keys = _KeysFile.model_validate_json(path.read_bytes()).keys
    except FileNotFoundError:
        raise KeysError(
            f"There is no file of keys at {path}. Create a key with `vouch-keys create`."
        ) from None
    except OSError as error:
        raise KeysError(f"The file of keys {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = "/".join(map(str, first["loc"])) or "the file"
        raise KeysError(
            f"The file of keys {path} is damaged: {where}: {first['msg']}. "
            "Restore the file from a copy, or delete the file and create new keys."
        ) from None
    if len({key.id for key in keys}) != len(keys):
        raise KeysError(f"The file of keys {path} is damaged: two keys have the same id.")
    return keys


def change_keys(path: Path, change: Callable[[Sequence[ApiKey]], Sequence[ApiKey]]) -> None:
    """Rewrite the file atomically, with one writer at a time.

    The new content goes to a temporary file, which only one writer can create. The temporary file
    then replaces the old file. Mode and owner of the file do not change. A new file is readable
    only by its owner.
    """
    path = path.resolve()  # a link stays one
    draft = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeysError(
            f"Another change of {path} is under way. If no other change is running, an "
            f"earlier change was interrupted: delete {draft} and try again."
        ) from None
    except OSError as error:
        raise KeysError(f"{draft} cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            before = read_keys(path) if path.exists() else ()
            after = _KeysFile(keys=tuple(change(before)))
            file.write(after.model_dump_json(indent=1, exclude_none=True).encode() + b"\n")
            file.flush()
            if path.exists():
                kept = path.stat()
                os.fchmod(descriptor, stat.S_IMODE(kept.st_mode))
                with suppress(PermissionError):  # only root gives files away
                    os.fchown(descriptor, kept.st_uid, kept.st_gid)
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise KeysError(f"{draft} cannot be written: {error.strerror}.") from None
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename also survives a power failure
    finally:
        os.close(directory)


class Keyring:
    """The keys of a running service, reloaded from their file.

    If the file becomes missing or damaged, the loaded keys stay valid and an error is logged.

    Raises
    ------
    KeysError : the file is missing or damaged when the service starts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._complained_of = _signature(path)
        self._keys = {key.id: key for key in read_keys(path)}
        self._look_at = time.monotonic() + LOOK_AFTER_S

    def find(self, presented: str) -> ApiKey:
        """Return the active key that matches a text.

        Raises
        ------
        Unauthenticated : the key is unknown, expired or revoked. The message names the reason only
            if the secret is right.
        """
        self._look()
        key_id, secret = _parse(presented)
        known = self._keys.get(key_id)
        digest = _digest(secret)
        # An unknown id is compared too: the response time then reveals nothing.
        same = hmac.compare_digest(digest, known.sha256 if known else "0" * len(digest))
        if known is None or not same:
            raise Unauthenticated("This service does not know the key that was sent.")
        if (state := known.state(_now())) != "active":
            raise Unauthenticated(f"The key {known.id} is {state}.")
        return known

    def _look(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_AFTER_S
        found = _signature(self._path)
        if found == self._seen:
            return
        try:
            keys = read_keys(self._path)
        except KeysError as error:
            if found != self._complained_of:
                logger.warning("the earlier keys stay in use: %s", error)
            self._complained_of = found
            return
        self._keys = {key.id: key for key in keys}
        self._seen = self._complained_of = found
        logger.info("keys read anew", extra={"fields": {"keys": len(keys)}})


def _parse(presented: str) -> tuple[str, str]:
    """Return id and secret; the id is empty if the prefix is wrong."""
    prefix, _, rest = presented.partition("_")
    key_id, _, secret = rest.partition("_")
    return (key_id if prefix == PREFIX else ""), secret


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Return modification time, size and inode of the file; None if it cannot be read.

    The keys are reloaded when one of these values changes.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _now() -> datetime:
    return datetime.now(UTC)

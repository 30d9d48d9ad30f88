"""The addresses of the databases that can store galleries."""

from __future__ import annotations

from dataclasses import dataclass, field

from model_store.gallery.milvus.collection import MilvusAccess
from model_store.gallery.postgres.database import SCHEMES, PostgresAccess


@dataclass(frozen=True, slots=True)
class DatabaseAccess:
    """The addresses that the operator has set, with secrets and timeouts; None for no address."""

    milvus: MilvusAccess = field(default_factory=MilvusAccess)
    postgres: PostgresAccess = field(default_factory=PostgresAccess)

    @classmethod
    def of_environment(cls, named: str | None, timeout_s: float) -> DatabaseAccess:
        """Return the access that the environment describes, with the variables of the service.

        Parameters
        ----------
        named : address from a configuration; a variable overrides this address.

        Raises
        ------
        ConfigError : a variable is not an address.
        """
        in_postgres = named is not None and is_postgres(named)
        return cls(
            MilvusAccess.of_environment(None if in_postgres else named, timeout_s),
            PostgresAccess.of_environment(named if in_postgres else None, timeout_s),
        )


NO_DATABASE = DatabaseAccess()
"""Access without an address; a gallery in a database cannot be opened with this access."""


def is_postgres(uri: str) -> bool:
    """Return True for an address of PostgreSQL, False for an address of Milvus."""
    return uri.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))

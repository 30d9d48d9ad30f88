"""A Milvus collection that holds a gallery: connection and schema.

::

    row        int64, primary key: 0, 1, … in the order of the ids when the gallery is built;
               each change adds a row. The content of a row never changes: a replaced item gets a
               new row, and the log determines the current row
    id, label  text; labelled says whether there is a label
    direction  D float32, unit, searched by inner product
    variance   D float32, and norm, float32: of the embedding before normalisation
    dispersion float32, Σ_d v_d / ‖m‖²
    metadata   JSON
    facts      digests of the item's values for filters, see `model_store.gallery.milvus.entities`
    thumbnail  base64, media_type beside it

A bundle names its collection in `MILVUS_FILE`. The collection stores the fingerprint of its encoder
and refuses another encoder. A collection can have marks. One mark is set when the collection is
complete. A second mark contains the name of the log of changes; a service without this log cannot
write to the collection. Marks are stored as aliases of the collection, because aliases survive a
killed server. Milvus 2.3 loses properties that are set after the creation of a collection.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from model_store.errors import SEE_LOG, BundleMismatch, ConfigError, GalleryUnavailable
from model_store.gallery.remote import (
    CHECK_S,
    Availability,
    Description,
    import_client,
    takes_connections,
)
from model_store.programs import variable
from model_store.text_values import require_no_user, split_address

logger = logging.getLogger(__name__)

MILVUS_FILE = "milvus.json"

TEXT_BYTES = 65_535
"""Maximum size of a text in Milvus in bytes. JSON in Milvus has about the same limit."""

MOST_FACTS = 4_096
"""Maximum number of elements of an array in Milvus."""

FACT_LENGTH = 24
"""Number of hexadecimal digits of a fact, see `model_store.gallery.milvus.entities`. For 10⁹
different facts, the probability of two equal digests is 10⁻¹¹."""

ENCODER_PROPERTY = "vouch.encoder"
SCHEMA_PROPERTY = "vouch.schema"
SCHEMA = "3"

COMPLETE = "complete"
"""The mark that a complete collection has."""

LOG = "log_"
"""One mark of the collection consists of this prefix and the name of the log of changes."""

MOST_EFFORT = 8
"""Maximum factor by which a filter increases the search effort. If a filter would need a larger
factor, Milvus compares all items that pass the filter."""

EVENTUALLY = 1
"""Timestamp for a Milvus read that does not wait for recent writes, so the read may miss them."""

NOW = 0
"""Timestamp for a Milvus read that waits until it finds all earlier writes of all clients."""

_NO_SUCH_COLLECTION = 100
_NOT_LOADED = 101
_OUR_MISTAKE = 1100

_PORT = 19530
_UNAVAILABLE = (
    "Milvus, which holds the gallery, does not answer or has reported an error. Send the request "
    "again later." + SEE_LOG
)


SCHEMES = ("http", "https", "tcp", "unix")
"""Schemes of a server's address."""


@dataclass(frozen=True, slots=True)
class MilvusAccess:
    """The address of a Milvus server, and the token.

    Attributes
    ----------
    uri : ``http://host:19530``, or the path of a file that ends in ``.db`` for milvus-lite; None if
        the operator has set none. The address in a bundle is never used, because a third party may
        have built the bundle.
    token : ``user:password`` or an API key; it is never stored.
    timeout_s : seconds to wait for an answer.
    log : address of the PostgreSQL database with the log of changes, for writers on several
        machines. None if the log is a file beside the bundles.
    """

    uri: str | None = None
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 5.0
    log: str | None = field(default=None, repr=False)

    @classmethod
    def of_environment(cls, named: str | None, timeout_s: float) -> MilvusAccess:
        """Return the access that the environment describes, with the variables of the service.

        A variable can be a file, see `model_store.programs.variable`.

        Parameters
        ----------
        named : address from a configuration; ``VOUCH_MILVUS_URI`` overrides this address. The token
            ``VOUCH_MILVUS_TOKEN`` is sent only to an address that the operator has set.

        Raises
        ------
        ConfigError : a variable is not an address. The message does not contain the value, which
            may contain a password.
        """
        uri, token, log = (variable(f"VOUCH_MILVUS_{name}") for name in ("URI", "TOKEN", "LOG"))
        for name, value, check in (("URI", uri, check_address), ("LOG", log, check_log)):
            try:
                if value is not None:
                    check(value)
            except ValueError as error:
                raise ConfigError(f"VOUCH_MILVUS_{name} {error}.") from None
        return cls(uri or named, token, timeout_s, log)


def check_address(uri: str) -> None:
    """Raise `ValueError` if ``uri`` is a URL of another kind, or contains a user."""
    if "://" in uri:
        require_no_user(split_address(uri, SCHEMES), "VOUCH_MILVUS_TOKEN")


def check_log(url: str) -> None:
    """Raise `ValueError` if ``url`` is not the address of a PostgreSQL database."""
    split_address(url, ("postgresql", "postgres"))


NO_ACCESS = MilvusAccess()
"""Access without an address; a gallery in Milvus cannot be opened with this access."""


@dataclass(frozen=True, kw_only=True)
class MilvusDescription(Description):
    """A bundle's description of its Milvus collection.

    Attributes
    ----------
    collection : name of the collection; see `write_to_milvus`.
    labels : labels at the time of the build.
    """

    file = MILVUS_FILE
    library = "Milvus"
    collection: str
    labels: Sequence[str]

    def effort(self, limit: int, share: float) -> dict[str, int]:
        """Return the parameters of a search for ``limit`` items among a ``share`` of all items.

        The search effort is multiplied by 1 / ``share``, but at most by `MOST_EFFORT`.
        """
        more = min(1 / share, MOST_EFFORT)
        parameters = {name: int(value * more) for name, value in self.index["parameters"].items()}
        if "ef" in parameters:
            parameters["ef"] = max(parameters["ef"], limit)
        return parameters


class Collection:
    """A connection to one collection; thread-safe.

    Raises
    ------
    ConfigError : no address is set, or pymilvus is not installed.
    GalleryUnavailable : Milvus does not answer.
    """

    def __init__(self, name: str, access: MilvusAccess) -> None:
        if access.uri is None:
            raise ConfigError(
                "The gallery is stored in Milvus, and no address of Milvus is set. Set "
                "VOUCH_MILVUS_URI. The address in a bundle is not used, because a third party may "
                "have written it."
            )
        self.name = name
        self.uri = access.uri
        self.timeout_s = access.timeout_s
        stored = "The gallery is stored in Milvus"
        self._pymilvus = import_client(stored, "pymilvus", "milvus", "pymilvus")
        with self._asking():
            self.client: Any = self._pymilvus.MilvusClient(
                self.uri, token=access.token or "", timeout=access.timeout_s
            )
        self._availability = Availability("Milvus", self._check, self._is_reachable)

    def close(self) -> None:
        """Close the connection."""
        self._availability.close()
        self.client.close()

    def _check(self) -> None:
        self.client.get_server_version(timeout=CHECK_S)

    def _is_reachable(self) -> bool:
        """Return whether the server's port accepts a connection; True for milvus-lite."""
        address = urlsplit(self.uri)
        if address.hostname is None:
            return True
        return takes_connections((address.hostname, address.port or _PORT))

    def ask(self, call: str, *values: Any, **options: Any) -> Any:  # noqa: ANN401 - has no types
        """Call the client's method ``call`` for this collection, and return its result."""
        return self._ask(lambda: getattr(self.client, call), values, options)

    def read(self, call: str, since: int, **options: Any) -> Any:  # noqa: ANN401 - has no types
        """Run a search or a query; it finds all writes up to ``since``, and possibly later writes.

        If a write is recent, Milvus waits a fraction of a second until the write is applied.
        """
        if since == NOW:
            return self.ask(call, consistency_level="Strong", **options)
        level = {"consistency_level": "Customized", "guarantee_timestamp": since}
        return self.ask(call, **level, **options)

    def put(self, entities: Sequence[Mapping[str, Any]]) -> int:
        """Write or replace entities by row; return the Milvus timestamp of the write."""
        # `MilvusClient.upsert` does not return the timestamp.
        done = self._ask(lambda: self.client._get_connection().upsert_rows, [list(entities)], {})
        return int(done.timestamp)

    def _ask(
        self,
        find: Callable[[], Callable[..., Any]],
        values: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:  # noqa: ANN401 - has no types
        options = {"timeout": self.timeout_s} | dict(options)
        number = self._availability.begin()
        if number is None:
            raise GalleryUnavailable(_UNAVAILABLE)
        try:
            with self._asking():
                try:
                    return find()(self.name, *values, **options)
                except self._pymilvus.MilvusException as error:
                    if error.code != _NOT_LOADED:
                        raise
                # After a restart, milvus-lite must load the collection again.
                self.client.load_collection(self.name, timeout=self.timeout_s)
                return find()(self.name, *values, **options)
        except GalleryUnavailable as error:
            self._availability.check(str(error.__cause__))  # it may have refused only this call
            raise
        finally:
            self._availability.end(number)

    def marks(self) -> set[str]:
        """Return the marks of the collection."""
        prefix = self._alias("")
        aliases = self.ask("list_aliases")["aliases"]
        return {alias.removeprefix(prefix) for alias in aliases if alias.startswith(prefix)}

    def mark(self, mark: str) -> None:
        """Add a mark; its name has only letters, digits and underscores."""
        self.ask("create_alias", self._alias(mark))

    def unmark(self, mark: str) -> None:
        """Remove a mark."""
        with self._asking():
            self.client.drop_alias(self._alias(mark), timeout=self.timeout_s)

    def drop(self) -> None:
        """Drop the collection if it exists. Its aliases are dropped first, as Milvus requires."""
        if self.ask("has_collection"):
            for mark in self.marks():
                self.unmark(mark)
            self.ask("drop_collection")

    def of_same_content(self) -> list[str]:
        """Return the names of the collections whose name begins with this name and ``_``."""
        with self._asking():
            names = self.client.list_collections(timeout=self.timeout_s)
        return sorted(name for name in names if name.startswith(f"{self.name}_"))

    def is_changed(self) -> bool:
        """Return whether the collection has ever accepted changes."""
        return any(mark.startswith(LOG) for mark in self.marks())

    def is_whole(self) -> bool:
        """Return whether the collection exists and is complete."""
        return bool(self.ask("has_collection")) and COMPLETE in self.marks()

    def _alias(self, mark: str) -> str:
        return f"{self.name}__{mark}"

    def require(self, described: MilvusDescription) -> None:
        """Check that the collection matches its description.

        Raises
        ------
        BundleMismatch : the collection is missing, incomplete, or has another encoder or dimension.
        """
        if not self.ask("has_collection"):
            raise BundleMismatch(_missing(self.name))
        stored = self.ask("describe_collection")
        properties = stored.get("properties", {})
        if properties.get(SCHEMA_PROPERTY) != SCHEMA:
            raise BundleMismatch(
                f"The collection {self.name!r} was written by an earlier release. Run "
                "`vouch-build index` again."
            )
        encoder = properties.get(ENCODER_PROPERTY, "none")
        if encoder != described.encoder:
            raise BundleMismatch(
                f"The collection {self.name!r} was made with encoder {encoder[:12]}, the bundle "
                f"needs {described.encoder[:12]}. Run `vouch-build index` with this encoder."
            )
        if COMPLETE not in self.marks():
            raise BundleMismatch(
                f"The collection {self.name!r} is incomplete. Run `vouch-build index` again."
            )
        fields = {one["name"]: one["params"] for one in stored["fields"]}
        dim = int(fields["direction"]["dim"])
        if dim != described.dim:
            raise BundleMismatch(
                f"The collection {self.name!r} has {dim} dimensions, the bundle {described.dim}. "
                "Run `vouch-build index` again."
            )

    def create(self, dim: int, encoder_fingerprint: str) -> None:
        """Create the collection, without an index."""
        types, client = self._pymilvus.DataType, self._pymilvus.MilvusClient
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", types.INT64, is_primary=True)
        schema.add_field("id", types.VARCHAR, max_length=TEXT_BYTES)
        schema.add_field("label", types.VARCHAR, max_length=TEXT_BYTES)
        schema.add_field("labelled", types.BOOL)  # Milvus before 2.5 has no null
        schema.add_field("direction", types.FLOAT_VECTOR, dim=dim)
        floats = {"element_type": types.FLOAT, "max_capacity": dim, "mmap_enabled": True}
        schema.add_field("variance", types.ARRAY, **floats)
        schema.add_field("norm", types.FLOAT)
        schema.add_field("dispersion", types.FLOAT)
        schema.add_field("metadata", types.JSON, mmap_enabled=True)
        texts = {"element_type": types.VARCHAR, "max_length": FACT_LENGTH}
        schema.add_field("facts", types.ARRAY, max_capacity=MOST_FACTS, mmap_enabled=True, **texts)
        schema.add_field("thumbnail", types.VARCHAR, max_length=TEXT_BYTES, mmap_enabled=True)
        schema.add_field("media_type", types.VARCHAR, max_length=64)
        properties = {ENCODER_PROPERTY: encoder_fingerprint, SCHEMA_PROPERTY: SCHEMA}
        self.ask("create_collection", schema=schema, properties=properties)

    def build_index(
        self, index_type: str, parameters: Mapping[str, int], patience_s: float
    ) -> None:
        """Build the index of the directions, and the indexes of the ids and facts."""
        indexes = self._pymilvus.MilvusClient.prepare_index_params()
        options = {"metric_type": "IP", "params": dict(parameters)}
        indexes.add_index("direction", index_type=index_type, **options)
        version = self.client.get_server_version()
        text, array = _scalar_indexes(version)
        indexes.add_index("id", index_type=text)
        if array is not None:
            indexes.add_index("facts", index_type=array)
        self.ask("create_index", indexes, timeout=patience_s)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert errors of Milvus; the new errors do not contain the address of Milvus."""
        grpc = import_module("grpc")
        try:
            yield
        except (self._pymilvus.MilvusException, grpc.RpcError) as error:
            code = getattr(error, "code", None)
            if code == _OUR_MISTAKE:
                raise
            if code == _NO_SUCH_COLLECTION:
                raise BundleMismatch(_missing(self.name)) from error
            raise GalleryUnavailable(_UNAVAILABLE) from error


def require_bare(uri: str) -> str:
    """Refuse an address with a user or password, because the bundle would contain it.

    Raises
    ------
    ConfigError
    """
    if "@" in uri and "://" in uri:
        raise ConfigError(
            "The address of Milvus names a user. Remove the user, and set VOUCH_MILVUS_TOKEN: the "
            "address is stored in the bundle, which must not contain secrets."
        )
    return uri


def _scalar_indexes(version: str) -> tuple[str, str | None]:
    """Return two index types: one for texts and one for arrays.

    The types depend on the ``version`` of the server. Since 2.4, Milvus has ``INVERTED`` for texts
    and arrays. Earlier releases have only ``Trie`` for texts. milvus-lite has ``INVERTED`` for
    texts only.
    """
    if version.startswith("milvus_lite"):
        return "INVERTED", None
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < (2, 4):
        return "Trie", None
    return "INVERTED", "INVERTED"


def _missing(name: str) -> str:
    return (
        f"Milvus has no collection {name!r}. Run `vouch-build index` with this Milvus, or set "
        "VOUCH_MILVUS_URI to the server that has the collection."
    )

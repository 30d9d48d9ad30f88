"""A collection of Milvus that holds a gallery: how it is reached, and what it consists of.

::

    row        int64, primary key: 0, 1, … in the order of the ids when the gallery is built, then
               one for each change. A row is written once and never again with other content: a
               replaced item gets a new row, and the log determines the current one
    id, label  text; labelled says whether there is a label
    direction  D float32, unit, searched by inner product
    variance   D float32, and norm, float32: of the embedding before normalisation
    dispersion float32, Σ_d v_d / ‖m‖²
    metadata   JSON
    facts      what filters ask of the item, see `model_store.gallery.milvus.filter`
    thumbnail  base64, media_type beside it

A bundle names the collection in `MILVUS_FILE`. The collection carries the fingerprint of the
encoder, and is not used with another. A complete collection is marked as such, and with the name of
the log of its changes, without which it is not written to. Marks are aliases: a server that is
killed keeps those, and Milvus 2.3 forgets properties that were set later.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from model_store.errors import BundleMismatch, ConfigError, GalleryUnavailable
from model_store.files import json_text
from model_store.gallery.milvus.availability import Availability
from model_store.gallery.milvus.filter import FACT_LENGTH
from model_store.installation import how_to_install

MILVUS_FILE = "milvus.json"

TEXT_BYTES = 65_535
"""Bytes of a text that Milvus takes; its limit for JSON is about the same."""

MOST_FACTS = 4_096
"""Elements of an array that Milvus takes."""

ENCODER_PROPERTY = "vouch.encoder"
SCHEMA_PROPERTY = "vouch.schema"
SCHEMA = "3"

COMPLETE = "complete"
"""The mark of a complete collection."""

MOST_EFFORT = 8
"""By which the effort of a search grows at most where a filter lets little through: where it lets
still less through, Milvus compares all of it."""

EVENTUALLY = 1
"""The time in Milvus that is always reached: a read that asks for it waits for nothing."""

NOW = 0
"""The time in Milvus that covers all writes until now, by any client."""

_NO_SUCH_COLLECTION = 100
_NOT_LOADED = 101
_OUR_MISTAKE = 1100

_PORT = 19530
_CONNECT_S = 0.045
"""Timeout in seconds of a look at the port, after a call was late or failed."""

_SHOWN = 200
_UNAVAILABLE = (
    "Milvus, which holds the gallery, does not answer, or not as wanted. Send the request again "
    "later; the operator of the service finds the reason in its log."
)


@dataclass(frozen=True, slots=True)
class MilvusAccess:
    """The address of Milvus, and the token for it.

    Attributes
    ----------
    uri : ``http://host:19530``, or the path of a file that ends in ``.db`` for milvus-lite; None
        if the operator named none. A bundle may come from a third party: its address is never used.
    token : ``user:password`` or an API key; never written down.
    timeout_s : seconds to wait for an answer.
    log : address of the PostgreSQL database that keeps the log of changes, for writers on several
        machines; None for a file beside the bundles.
    """

    uri: str | None = None
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 5.0
    log: str | None = field(default=None, repr=False)


NO_ACCESS = MilvusAccess()
"""No address: galleries in Milvus are refused."""


@dataclass(frozen=True, slots=True)
class MilvusDescription:
    """A bundle's description of its Milvus collection.

    Attributes
    ----------
    uri : address that it was written to, without user and password.
    collection : its name, derived from its content.
    encoder : fingerprint.
    n_items, dim, labels : at the time of the build.
    index : ``type``, ``parameters`` of a search, ``recall_at_10`` and with how many ``n_queries``.
    """

    uri: str
    collection: str
    encoder: str
    n_items: int
    dim: int
    labels: Sequence[str]
    index: Mapping[str, Any]

    @property
    def engine(self) -> str:
        """The index and how it is searched, in Milvus's words."""
        parameters = [f"{name}={value}" for name, value in self.index["parameters"].items()]
        return ",".join([f"Milvus {self.index['type']}", *parameters])

    def effort(self, limit: int, share: float) -> dict[str, int]:
        """Parameters of a search for ``limit`` items among a ``share`` of all.

        The fewer items a filter passes, the more lists it reads.
        """
        more = min(1 / share, MOST_EFFORT)
        parameters = {name: int(value * more) for name, value in self.index["parameters"].items()}
        if "ef" in parameters:
            parameters["ef"] = max(parameters["ef"], limit)
        return parameters

    def save(self, directory: Path) -> None:
        """Write to ``directory``."""
        (directory / MILVUS_FILE).write_text(json_text(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> MilvusDescription:
        """Read what `save` wrote."""
        return cls(**json.loads((directory / MILVUS_FILE).read_text(encoding="utf-8")))


class Collection:
    """A connection to one collection; safe to share by threads.

    Raises
    ------
    ConfigError : no address is set, or pymilvus is not installed.
    GalleryUnavailable : Milvus does not answer.
    """

    def __init__(self, name: str, access: MilvusAccess) -> None:
        if access.uri is None:
            raise ConfigError(
                "The gallery lies in Milvus, and no address of Milvus is set. Set "
                "VOUCH_MILVUS_URI: the address in a bundle is not used, since a third party may "
                "have "
                "written it."
            )
        self.name = name
        self.uri = access.uri
        self.timeout_s = access.timeout_s
        self._pymilvus = _pymilvus()
        with self._asking():
            self.client: Any = self._pymilvus.MilvusClient(
                self.uri, token=access.token or "", timeout=access.timeout_s
            )
        self._availability = Availability(self._answers, self._is_reachable)

    def close(self) -> None:
        """Hang up."""
        self._availability.close()
        self.client.close()

    def _answers(self) -> bool:
        try:
            self.client.get_server_version(timeout=self.timeout_s)
        except Exception:
            return False
        return True

    def _is_reachable(self) -> bool:
        """Return whether the server's port takes a connection; True of a file of milvus-lite."""
        address = urlsplit(self.uri)
        if address.hostname is None:
            return True
        try:
            port = address.port or _PORT
            with socket.create_connection((address.hostname, port), _CONNECT_S):
                return True
        except OSError:
            return False

    def ask(self, call: str, *values: Any, **options: Any) -> Any:  # noqa: ANN401 - has no types
        """Make the client's ``call`` on this collection and return its answer."""
        return self._ask(lambda: getattr(self.client, call), values, options)

    def read(self, call: str, since: int, **options: Any) -> Any:  # noqa: ANN401 - has no types
        """Search or query what was written up to the time ``since``, and perhaps more.

        Milvus waits until it has come so far, a fraction of a second after a write.
        """
        if since == NOW:
            return self.ask(call, consistency_level="Strong", **options)
        level = {"consistency_level": "Customized", "guarantee_timestamp": since}
        return self.ask(call, **level, **options)

    def put(self, entities: Sequence[Mapping[str, Any]]) -> int:
        """Write entities, in place of those of the same rows; the time in Milvus of the write."""
        # What `MilvusClient.upsert` returns leaves the time out.
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
                # It was started again, and milvus-lite has forgotten what was loaded.
                self.client.load_collection(self.name, timeout=self.timeout_s)
                return find()(self.name, *values, **options)
        except GalleryUnavailable as error:
            if not self._is_reachable():  # else it answered, or was slow
                self._availability.fail(str(error.__cause__)[:_SHOWN])
            raise
        finally:
            self._availability.end(number)

    def marks(self) -> set[str]:
        """Return what the collection was marked with."""
        prefix = self._alias("")
        aliases = self.ask("list_aliases")["aliases"]
        return {alias.removeprefix(prefix) for alias in aliases if alias.startswith(prefix)}

    def mark(self, mark: str) -> None:
        """Mark the collection: with letters, digits and underscores."""
        self.ask("create_alias", self._alias(mark))

    def unmark(self, mark: str) -> None:
        """Take a mark off."""
        with self._asking():
            self.client.drop_alias(self._alias(mark), timeout=self.timeout_s)

    def drop(self) -> None:
        """Drop the collection, if there is one; Milvus drops none that has aliases."""
        if self.ask("has_collection"):
            for mark in self.marks():
                self.unmark(mark)
            self.ask("drop_collection")

    def is_whole(self) -> bool:
        """Return whether the collection exists and is complete."""
        return bool(self.ask("has_collection")) and COMPLETE in self.marks()

    def _alias(self, mark: str) -> str:
        return f"{self.name}__{mark}"

    def require(self, described: MilvusDescription) -> None:
        """Refuse a collection that is not the one that was described.

        Raises
        ------
        BundleMismatch : it is missing, unfinished, of another encoder or of other dimensions.
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
                f"The collection {self.name!r} was made with encoder {encoder[:12]}, the bundle's "
                f"is {described.encoder[:12]}. Run `vouch-build index` with this encoder."
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
        """Make the collection, without an index as yet."""
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
        """Build the index of the directions and those that items are looked up by."""
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
        """Say in our words what went wrong; nothing of where Milvus is, which clients would see."""
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
    """Refuse an address that names a user or a password: it would be written into the bundle.

    Raises
    ------
    ConfigError
    """
    if "@" in uri and "://" in uri:
        raise ConfigError(
            "The address of Milvus names a user. Leave it out, and put the token into "
            "VOUCH_MILVUS_TOKEN: a bundle holds no secrets."
        )
    return uri


def _scalar_indexes(version: str) -> tuple[str, str | None]:
    """Types of the indexes of texts and of arrays that a server of this ``version`` has.

    Milvus has ``INVERTED`` since 2.4, and before that ``Trie`` for texts and nothing for arrays;
    milvus-lite has ``INVERTED`` and nothing for arrays.
    """
    if version.startswith("milvus_lite"):
        return "INVERTED", None
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < (2, 4):
        return "Trie", None
    return "INVERTED", "INVERTED"


def _missing(name: str) -> str:
    return (
        f"Milvus has no collection {name!r}. Run `vouch-build index` against this Milvus, or set "
        "VOUCH_MILVUS_URI to the one that holds it."
    )


def _pymilvus() -> Any:  # noqa: ANN401 - has no types
    try:
        return import_module("pymilvus")
    except ImportError as error:
        raise ConfigError(
            "The gallery lies in Milvus, and pymilvus is not installed. " + how_to_install("milvus")
        ) from error

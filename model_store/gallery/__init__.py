"""The gallery: the items that a query is compared with.

Every engine implements the protocol `Gallery`. `FaissGallery` (FAISS and SQLite in a directory) is
the embedded default. `LiveGallery` adds a log of changes to a `FaissGallery` and makes a
`GallerySnapshot` after each change. `PostgresGallery` and `MilvusGallery` keep the items in a
database, which several machines can share; `PostgresLive` and `MilvusLive` write their changes.
`LiveGallery` and these two implement `Writable`. `read_filter` parses a filter, and
`Gallery.matching` returns the rows that pass it.

::

    protocol    the protocol `Gallery`, its items and embeddings
    writable    the protocol `Writable`: a gallery that accepts changes
    opening     opens the gallery in a directory
    files       the embedded engine: FAISS and SQLite
    index       FAISS indexes
    live        an embedded gallery with a log of changes
    filters     the language of filters
    access      the addresses of databases
    availability  whether a database answers
    content     the name of a gallery in a database, and the recall of its index
    entities    what the galleries in databases have in common
    postgres    the engine for several machines: PostgreSQL with pgvector
    milvus      the engine for the largest galleries: Milvus
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_store.gallery.files.gallery import FaissGallery
    from model_store.gallery.files.writer import write_faiss_gallery, write_faiss_parts
    from model_store.gallery.filters.grammar import Filter, parse_filter, read_filter
    from model_store.gallery.index.allowed import Allowed, MaskedRows
    from model_store.gallery.index.build import IndexReport
    from model_store.gallery.index.plan import IndexSettings
    from model_store.gallery.live.gallery import LiveGallery
    from model_store.gallery.live.log import ChangesFile
    from model_store.gallery.live.snapshot import GallerySnapshot
    from model_store.gallery.milvus.collection import MilvusAccess
    from model_store.gallery.milvus.gallery import MilvusGallery
    from model_store.gallery.milvus.live import MilvusLive, open_milvus
    from model_store.gallery.milvus.writer import write_milvus_gallery, write_milvus_parts
    from model_store.gallery.opening import open_gallery
    from model_store.gallery.postgres.database import PostgresAccess
    from model_store.gallery.postgres.gallery import PostgresGallery
    from model_store.gallery.postgres.live import PostgresLive, open_postgres
    from model_store.gallery.postgres.writer import write_postgres_gallery, write_postgres_parts
    from model_store.gallery.protocol import Candidates, Gallery, Item, NewItem, Thumbnail
    from model_store.gallery.writable import (
        Delete,
        Edit,
        ItemFields,
        Receipt,
        Retry,
        Upsert,
        Vector,
        Writable,
        Write,
        Written,
    )

_PLACES = {
    "live.log": ("ChangesFile",),
    "files.gallery": ("FaissGallery",),
    "files.writer": (
        "write_faiss_gallery",
        "write_faiss_parts",
    ),
    "filters.grammar": (
        "Filter",
        "parse_filter",
        "read_filter",
    ),
    "index.allowed": (
        "Allowed",
        "MaskedRows",
    ),
    "index.build": ("IndexReport",),
    "index.plan": ("IndexSettings",),
    "live.gallery": ("LiveGallery",),
    "milvus.collection": ("MilvusAccess",),
    "milvus.gallery": ("MilvusGallery",),
    "milvus.live": ("MilvusLive", "open_milvus"),
    "milvus.writer": ("write_milvus_gallery", "write_milvus_parts"),
    "opening": ("open_gallery",),
    "postgres.database": ("PostgresAccess",),
    "postgres.gallery": ("PostgresGallery",),
    "postgres.live": ("PostgresLive", "open_postgres"),
    "postgres.writer": ("write_postgres_gallery", "write_postgres_parts"),
    "protocol": (
        "Candidates",
        "Gallery",
        "Item",
        "NewItem",
        "Thumbnail",
    ),
    "live.snapshot": ("GallerySnapshot",),
    "writable": (
        "Delete",
        "Edit",
        "ItemFields",
        "Receipt",
        "Retry",
        "Upsert",
        "Vector",
        "Writable",
        "Write",
        "Written",
    ),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name on its first use.

    So code that needs only filters and index settings does not import FAISS.
    """
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


__all__ = [
    "Allowed",
    "Candidates",
    "ChangesFile",
    "Delete",
    "Edit",
    "FaissGallery",
    "Filter",
    "Gallery",
    "GallerySnapshot",
    "IndexReport",
    "IndexSettings",
    "Item",
    "ItemFields",
    "LiveGallery",
    "MaskedRows",
    "MilvusAccess",
    "MilvusGallery",
    "MilvusLive",
    "NewItem",
    "PostgresAccess",
    "PostgresGallery",
    "PostgresLive",
    "Receipt",
    "Retry",
    "Thumbnail",
    "Upsert",
    "Vector",
    "Writable",
    "Write",
    "Written",
    "open_gallery",
    "open_milvus",
    "open_postgres",
    "parse_filter",
    "read_filter",
    "write_faiss_gallery",
    "write_faiss_parts",
    "write_milvus_gallery",
    "write_milvus_parts",
    "write_postgres_gallery",
    "write_postgres_parts",
]

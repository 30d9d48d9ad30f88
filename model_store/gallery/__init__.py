"""The gallery: the items that a query is compared with.

Every engine implements the protocol `Gallery`. `FaissGallery` (FAISS and SQLite in a directory) is
the embedded default. `LiveGallery` adds a log of changes to a `FaissGallery` and makes a
`GallerySnapshot` after each change. Other engines keep the items in a database, which several
machines can share. A gallery that accepts changes implements `Writable`. `read_filter` parses a
filter, and `Gallery.matching` returns the rows that pass it.

::

    protocol    the protocols `Gallery` and `Writable`, items and embeddings
    opening     the engines; opens the gallery in a directory
    files       the embedded engine: FAISS and SQLite
    index       FAISS indexes
    live        an embedded gallery with a log of changes
    filters     the language of filters
    remote      the availability of a database, sessions of PostgreSQL, and a bundle's
                description of a gallery in a database
    entities    what the galleries in databases have in common
    content     the name of a gallery in a database, and the recall of its index
    postgres    the engine for several machines: PostgreSQL with pgvector
    milvus      the engine for the largest galleries: Milvus
"""

from importlib import import_module
from typing import TYPE_CHECKING

from model_store.gallery.filters.grammar import Filter, parse_filter, read_filter
from model_store.gallery.index.plan import IndexSettings

if TYPE_CHECKING:
    from model_store.gallery.files.gallery import (
        FaissGallery,
        write_faiss_gallery,
        write_faiss_parts,
    )
    from model_store.gallery.filters.selection import Allowed, MaskedRows
    from model_store.gallery.index.build import IndexReport
    from model_store.gallery.live.gallery import LiveGallery
    from model_store.gallery.live.log import ChangesFile
    from model_store.gallery.live.snapshot import GallerySnapshot
    from model_store.gallery.opening import open_gallery
    from model_store.gallery.protocol import (
        Candidates,
        Delete,
        Edit,
        Gallery,
        Item,
        ItemFields,
        NewItem,
        Receipt,
        Retry,
        Thumbnail,
        Upsert,
        Vector,
        Writable,
        Write,
        Written,
    )

_MODULE_OF = {
    "Allowed": "filters.selection",
    "Candidates": "protocol",
    "ChangesFile": "live.log",
    "Delete": "protocol",
    "Edit": "protocol",
    "FaissGallery": "files.gallery",
    "Gallery": "protocol",
    "GallerySnapshot": "live.snapshot",
    "IndexReport": "index.build",
    "Item": "protocol",
    "ItemFields": "protocol",
    "LiveGallery": "live.gallery",
    "MaskedRows": "filters.selection",
    "NewItem": "protocol",
    "open_gallery": "opening",
    "Receipt": "protocol",
    "Retry": "protocol",
    "Thumbnail": "protocol",
    "Upsert": "protocol",
    "Vector": "protocol",
    "Writable": "protocol",
    "Write": "protocol",
    "write_faiss_gallery": "files.gallery",
    "write_faiss_parts": "files.gallery",
    "Written": "protocol",
}


def __getattr__(name: str) -> object:
    """Import a name on its first use.

    So code that needs only filters and index settings, such as a client, imports neither NumPy
    nor FAISS.
    """
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)

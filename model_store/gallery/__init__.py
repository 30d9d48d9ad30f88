"""The gallery: what a query is compared with.

`Gallery` is the seam; `FaissGallery` (FAISS and SQLite in a directory) is the embedded default.
`LiveGallery` adds a log of changes to it, and gives out a `GallerySnapshot` after each.
`MilvusGallery` (a collection of Milvus) is the one beyond one machine, `MilvusLive` takes its
changes; both that do are `Writable`.
`read_filter` reads which items a search may find, and `Gallery.matching` finds them.
"""

from model_store.gallery.changes import ChangesFile
from model_store.gallery.faiss_gallery import FaissGallery
from model_store.gallery.faiss_write import write_faiss_gallery, write_faiss_parts
from model_store.gallery.filters import Filter, parse_filter, read_filter
from model_store.gallery.index_build import IndexReport
from model_store.gallery.index_choice import IndexSettings
from model_store.gallery.live import LiveGallery
from model_store.gallery.milvus_collection import MilvusAccess
from model_store.gallery.milvus_gallery import MilvusGallery
from model_store.gallery.milvus_live import MilvusLive
from model_store.gallery.milvus_write import write_milvus_gallery
from model_store.gallery.opening import open_gallery
from model_store.gallery.protocol import Candidates, Gallery, Item, NewItem, Thumbnail
from model_store.gallery.snapshot import GallerySnapshot
from model_store.gallery.writes import Delete, Retry, Upsert, Vector, Writable, Written

__all__ = [
    "Candidates",
    "ChangesFile",
    "Delete",
    "FaissGallery",
    "Filter",
    "Gallery",
    "GallerySnapshot",
    "IndexReport",
    "IndexSettings",
    "Item",
    "LiveGallery",
    "MilvusAccess",
    "MilvusGallery",
    "MilvusLive",
    "NewItem",
    "Retry",
    "Thumbnail",
    "Upsert",
    "Vector",
    "Writable",
    "Written",
    "open_gallery",
    "parse_filter",
    "read_filter",
    "write_faiss_gallery",
    "write_faiss_parts",
    "write_milvus_gallery",
]

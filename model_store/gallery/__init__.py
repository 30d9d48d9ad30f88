"""The gallery: what a query is compared with.

`Gallery` is the seam; `FaissGallery` (FAISS and SQLite in a directory) is the embedded default.
`LiveGallery` adds a log of changes to it, and gives out a `GallerySnapshot` after each.
"""

from model_store.gallery.changes import ChangesFile
from model_store.gallery.faiss_gallery import FaissGallery, write_faiss_gallery
from model_store.gallery.live import LiveGallery, Written
from model_store.gallery.protocol import Candidates, Gallery, Item, NewItem, Thumbnail
from model_store.gallery.snapshot import GallerySnapshot
from model_store.gallery.writes import Delete, Retry, Upsert, Vector

__all__ = [
    "Candidates",
    "ChangesFile",
    "Delete",
    "FaissGallery",
    "Gallery",
    "GallerySnapshot",
    "Item",
    "LiveGallery",
    "NewItem",
    "Retry",
    "Thumbnail",
    "Upsert",
    "Vector",
    "Written",
    "write_faiss_gallery",
]

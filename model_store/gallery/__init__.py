"""The gallery: what a query is compared with.

`Gallery` is the seam; `FaissGallery` (FAISS and SQLite in a directory) is the embedded default.
"""

from model_store.gallery.faiss_gallery import FaissGallery, write_faiss_gallery
from model_store.gallery.protocol import Candidates, Gallery, Item, NewItem, Thumbnail

__all__ = [
    "Candidates",
    "FaissGallery",
    "Gallery",
    "Item",
    "NewItem",
    "Thumbnail",
    "write_faiss_gallery",
]

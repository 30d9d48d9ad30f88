"""The sources of a collection: folders, manifests, archives, and formats of data sets.

A source yields its entries in a fixed order, and decodes no image.

::

    places      the folder that must contain all images; a folder of images
    manifest    CSV, JSONL or Parquet, with a line for each image
    archive     a tar of images, optionally with label and metadata files beside the images
    documents   COCO annotations (each box is an item) and IIIF manifests (each canvas is an item)
    tables      Parquet files that contain the images; tables of vectors instead of images
    opening     chooses the reader for a path or a URL
"""

from index_builder.indexing.sources.opening import (
    is_of_vectors,
    name_of,
    open_source,
    open_vectors,
)
from index_builder.indexing.sources.places import Source
from index_builder.indexing.sources.tables import VectorSource

__all__ = ["Source", "VectorSource", "is_of_vectors", "name_of", "open_source", "open_vectors"]

"""The sources of a collection: a folder, a manifest, an archive, and what data sets come as.

Each yields its entries in a fixed order and reads no pixel.

::

    source      what all of them are
    folder      a folder of images
    manifest    CSV, JSONL or Parquet
    archive     a tar of images, maybe with what webdataset lays beside them
    coco        annotations of COCO, an item a box
    iiif        a manifest of IIIF's Presentation API, an item a canvas
    parquet_images  Parquet with the images in it
    vectors     tables of vectors, in place of images
    unpacking   files of the run that are written from compressed ones
    places      the folder that images must lie in
    remote      a file or a folder in a bucket or on the web, read by the readers above
    bucket_folder  the files of a folder in a bucket, in the order of a disk
    opening     which of them a path or a URL is
"""

from index_builder.indexing.sources.opening import (
    is_of_vectors,
    name_of,
    open_source,
    open_vectors,
)
from index_builder.indexing.sources.source import Source
from index_builder.indexing.sources.vectors import VectorSource

__all__ = ["Source", "VectorSource", "is_of_vectors", "name_of", "open_source", "open_vectors"]

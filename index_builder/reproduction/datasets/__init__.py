"""Published data sets in their authors' layout on disk, with their official splits.

Each reader takes an `Origin`, the folder of the user's data sets, and returns an `Official` with
its parts. Missing data raise a `DatasetError` with the expected number and the source.
`Origin.allow_partial` accepts incomplete data, and the result records the missing part.

::

    official        location and completeness of data
    small           MNIST and Fashion-MNIST, CIFAR-10, SVHN, Chars74K
    omniglot        Omniglot
    fine_grained    CUB-200 and Cars-196
    caltech         Caltech-101
    products        Stanford Online Products, In-Shop
    faces           Labeled Faces in the Wild
    street_level    Mapillary Street-Level Sequences
    mosaic          many small images in one image file
    tables          text files with tables
"""

from index_builder.reproduction.datasets.official import Official, Origin

__all__ = ["Official", "Origin"]

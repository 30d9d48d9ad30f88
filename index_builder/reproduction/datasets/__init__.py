"""Published data sets as their authors lay them out on disk and divide them.

Each reader takes an `Origin`, the folder that the user's data sets lie in, and gives an `Official`:
parts by name, counted. What is missing, or fewer than published, is a `DatasetError` with the
expected number and its origin; `Origin.allow_partial` takes less, and remembers what is missing.

::

    official        place and completeness of data
    small           MNIST's kin, CIFAR-10, SVHN, Chars74K
    omniglot        Omniglot
    fine_grained    CUB-200 and Cars-196
    caltech         Caltech-101
    products        Stanford Online Products, In-Shop
    faces           Labeled Faces in the Wild
    street_level    Mapillary Street-Level Sequences
    mosaic          many small images in one picture
    tables          the text files that describe them
"""

from index_builder.reproduction.datasets.official import Official, Origin

__all__ = ["Official", "Origin"]

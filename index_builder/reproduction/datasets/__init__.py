"""Readers of published data sets, for files in the layout of the authors.

A reader takes an `Origin` with the folder of the user's data sets. It returns an `Official` with
the official parts of the data set. If data are missing, it raises a `DatasetError` with the
expected number of images and the address of the data. With `Origin.allow_partial`, incomplete data
are accepted, and the result states what is missing.

::

    official        location and completeness of data; text files with tables
    small           MNIST and Fashion-MNIST, CIFAR-10, SVHN, Chars74K
    photographs     CUB-200, Cars-196, SOP, In-Shop, LFW, Caltech-101
"""

from index_builder.reproduction.datasets.official import Official, Origin

__all__ = ["Official", "Origin"]

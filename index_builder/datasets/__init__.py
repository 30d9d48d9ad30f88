"""Labelled images, and their division into training, gallery, calibration and evaluation.

`load_splits` (`splits`) loads and divides the data of a build. Sources: `small_images` (digits,
Fashion-MNIST, MNIST, and far-OOD images), `folder` (one sub-folder for each label; a copied source
also has a manifest). `image_files` separates the images of a source from its other files, and finds
labels that differ only in case, spaces or Unicode form. `groups` keeps images of one object in one
part. `corruption` makes corrupted images and augmented views. `images` defines `LabelledImages`,
the type of all collections of images.
"""

from index_builder.datasets.images import LabelledImages
from index_builder.datasets.splits import SplitChoices, Splits, load_splits

__all__ = ["LabelledImages", "SplitChoices", "Splits", "load_splits"]

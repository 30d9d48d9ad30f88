"""Training: images → a trained encoder.

::

    loop            epochs, steps, learning rates
    batches         balanced over labels, shuffled, or two views of each image
    augmentation    random changes of images
    distributed     several processes, by torchrun
"""

"""Training: images → a trained encoder.

::

    loop            epochs, steps, learning rates
    augmentation    random changes of images
    distributed     several processes, by torchrun
"""

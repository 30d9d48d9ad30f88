"""Images → trained encoder.

::

    loop            epochs, steps, learning rates
    batches         batches with several images of each label
    augmentation    random changes of images
    threads         threads of torch for small work
    distributed     several processes, by torchrun
"""

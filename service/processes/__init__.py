"""What the service's child processes share with it.

::

    shared_pixels    images in memory that both sides map
    memory           settings of the allocator
"""

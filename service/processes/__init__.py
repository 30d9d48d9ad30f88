"""The parts that the service and its child processes share.

::

    shared_pixels    images in memory that both sides map
    memory           settings of the allocator
    open_files       how many may be open
"""

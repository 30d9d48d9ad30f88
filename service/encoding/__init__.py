"""Pixels → predictive distribution.

::

    process          the encoder process as its parent sees it
    worker           the encoder process itself
    side_by_side     encodes several batches in parallel, on several cores
    shared           runs an encoder once for all bundles that use it
    queues           the queue of each encoder
    batching         images of several requests, encoded together
    batch_size       measures the best batch size
    cache            predictive distributions, in Redis or in the process; concurrent equal
                     requests are computed once
"""

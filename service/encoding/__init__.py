"""Pixels → predictive distribution.

::

    process          the encoder process as its parent sees it
    worker           the encoder process itself
    side_by_side     several batches at once, on a processor of several cores
    shared           one encoder of several bundles, run once
    queues           the queue of each encoder
    batching         images of several requests, encoded together
    batch_size       measures the best batch size
    single_flight    computes concurrent equal requests once
    cache            predictive distributions, in Redis or in the process
"""

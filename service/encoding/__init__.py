"""Pixels → predictive distribution.

::

    process          the encoder process: the parent's side, and the child itself
    queues           the queue of each encoder
    batching         images of several requests, encoded together
    cache            predictive distributions, in Redis or in the process; concurrent equal
                     requests are computed once
"""

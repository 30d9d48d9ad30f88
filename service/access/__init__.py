"""Authentication, permission and rate limits.

::

    access         who may ask, and how often
    caller         the caller of a request, and what its key is for
    keys           API keys in a file
    proxies        the caller behind a proxy
    hosts          names that the service goes by
    command        ``vouch-keys``
    rate_limits    requests a caller may make, counted here or in Redis
"""

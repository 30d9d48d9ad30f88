"""Filters: conditions on the items that a search may find.

::

    grammar    the language of filters, read and checked
    sql        filters → SQL
"""

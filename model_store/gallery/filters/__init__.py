"""Filters: conditions on the items that a search may find.

::

    grammar      the language of filters, read and checked
    sql          filters → SQL, and the values of a field by SQL
    columns      the index of one field
    selection    the rows that pass a filter, by the indexes of its fields
    facets       the values of a field, and how many items have each
"""

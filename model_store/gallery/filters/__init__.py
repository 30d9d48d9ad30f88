"""Filters: conditions on the items that a search may find.

::

    grammar      the filter language: parser and checks
    sql          filters → SQL, and the values of a field read by SQL
    columns      the index of one field
    selection    the rows that a search may find: those that pass a filter, by field indexes
"""

"""The tests, in folders that mirror the packages, and what they share.

`support`      fakes, damaged files, bundles and processes that several tests use
`laws`         the laws of each protocol, which every implementation and every fake inherits
`end_to_end`   the service and its commands as processes
`torture`      minutes of crashes, hostile files and load; a target of `make` each
`benchmarks`   everything measured; see its README
`readme`       the pictures of the README and of the site
"""

"""The commands of ``vouch-build``; each is a function.

::

    app            all commands, in the order of the help
    steps          train, fit, export, publish; reproduce
    command_line   conventions of all commands: options, help, output
    outcome        the outcome of a build, on the terminal and as JSON; --require
    all_steps      all; config show, init, schema
    evidence       calibrate, evaluate, compare, unknown
    encoder        encoder
    index          index, with its options
    live           new, items, compact, backup, restore; feedback export, feedback import
    bundles        bundles, activate, rollback, push, pull, certify, verify, …
    doctor         checks of the command doctor
"""

"""The commands of ``vouch-build``; each is a function.

::

    app            all commands, in the order of the help
    steps          train, fit, export, publish
    command_line   help, -v, -q and Ctrl+C of all commands
    outcome        the outcome of a build, on the terminal and as JSON; --require
    panels         the layout of help
    all_steps      all; config show, init, schema
    evidence       calibrate, evaluate
    unknown        unknown
    encoder        encoder
    index          index
    index_options  the options of index
    options_class  turns the fields of a class into options of a command
    live           new, items, compact, backup, restore
    feedback       feedback export, feedback import
    bundles        bundles, activate, rollback, doctor
    exchange       push, pull
    doctor         checks of the command doctor
    certify        certify, verify
    reproduce      reproduce
"""

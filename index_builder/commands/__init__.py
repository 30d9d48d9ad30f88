"""``vouch-build``, a function a command.

::

    app            all commands, in the order of the help
    steps          train, fit, export, publish
    command_line   help, -v, -q and Ctrl+C of all commands
    outcome        the outcome of a build, on the terminal and as JSON; --require
    panels         the layout of help
    all_steps      all
    evidence       calibrate, evaluate
    unknown        unknown
    config         config show, init, schema
    encoder        encoder
    index          index
    index_options  the options of index
    options_class  commands whose options are the fields of a class
    live           items, compact, backup, restore
    feedback       feedback export, feedback import
    bundles        bundles, activate, rollback, doctor
    exchange       push, pull
    doctor         what doctor examines
    certify        certify, verify
    reproduce      reproduce
"""

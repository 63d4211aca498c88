"""The command line: `commands` has one file per command, `usage` their help, and `app` runs
them.
"""

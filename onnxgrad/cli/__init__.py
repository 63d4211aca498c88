"""The command line: one file for each command in `commands`, their help in `usage`, and `app`,
which runs them.
"""

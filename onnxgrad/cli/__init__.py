"""The command line: a file per command, and one of the same name in `usage` for what can be said to
it; `app` finds them, `output` prints.
"""

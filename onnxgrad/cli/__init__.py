"""The command line: one file per command; `app` finds them, `common` holds what they share,
`report` prints.
"""

"""The command line: a file per command; `usage` has their help, `app` finds them."""

"""What can be said to each command, a file each, called as the command: as little to import as
`--help` needs.
"""

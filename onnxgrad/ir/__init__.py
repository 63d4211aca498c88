"""The binding block, and everything that reads, types, changes, prints and writes it."""

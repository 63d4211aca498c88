"""The binding block and everything about reading, typing, emitting, printing and writing it."""

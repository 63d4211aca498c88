"""External data, arrays in files, and files that are written completely or not at all."""

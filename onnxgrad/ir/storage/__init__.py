"""External data, arrays in files, and files that appear whole or not at all."""

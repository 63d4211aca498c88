"""One file per command, with its name. Each runs the job and prints the result."""

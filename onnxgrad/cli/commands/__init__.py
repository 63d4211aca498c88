"""One file for each command, named like it: it runs the job and prints the result."""

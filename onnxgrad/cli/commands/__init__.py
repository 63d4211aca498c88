"""The commands, a file each, called as the command: run the job, print."""

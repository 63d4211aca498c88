"""What can be asked for: a job each, its options declared once, and one driver."""

"""What was done, as data, and how it reads: tables, JSON, Markdown."""

"""`optimize` as a pass of Olive workflows; nothing else imports this folder, which needs Olive."""

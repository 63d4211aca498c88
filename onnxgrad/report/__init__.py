"""Outcomes of jobs as text, JSON, Markdown, JUnit XML and HTML pages."""

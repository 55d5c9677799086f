"""Log lines for people and as JSON."""

"""The agent's own settings: the value, the file, and the schema of every key."""

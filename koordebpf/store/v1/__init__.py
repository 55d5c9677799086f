"""The JSON of plans and audit lines, version 1."""

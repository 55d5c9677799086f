"""Strategies in a running agent: what each measures, writes and remembers between rounds."""

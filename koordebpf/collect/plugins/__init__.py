"""Eviction plugins outside the process: where they are, and what they answer, as measurements."""

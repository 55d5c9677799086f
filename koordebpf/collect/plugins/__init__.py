"""Eviction plugins outside the process: whom they are, and what they answer, as measurements."""

"""Recordings of an agent's rounds: decided again, also under other settings, explained, and redacted."""

"""The flight recorder: an agent's rounds with what they were decided from, on disk and bounded, to be decided again."""

"""Series of usage as they are shown to people and tools."""

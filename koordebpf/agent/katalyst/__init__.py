"""Katalyst's eviction manager in the agent: what is measured for it, its plugins, and its effects."""

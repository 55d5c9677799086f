"""Katalyst's eviction plugins inside the agent, one module each. Pure."""

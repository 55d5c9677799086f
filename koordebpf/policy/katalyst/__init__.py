"""Katalyst's eviction manager as a strategy: rounds of plugins, grace, soft and forced pods, conditions. Pure."""

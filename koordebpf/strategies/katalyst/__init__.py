"""Katalyst's eviction manager: its rounds, the plugins inside the agent, those outside it, and what reports them."""

"""Runtime hooks: what koordlet sets before a container starts, set and kept so by an agent."""

"""The plugins inside the agent. Pure."""

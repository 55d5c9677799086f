"""QoS strategies in the agent: one module each."""

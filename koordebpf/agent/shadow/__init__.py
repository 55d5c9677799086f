"""Shadow mode in the agent: configurations that are judged on its rounds, and never act."""

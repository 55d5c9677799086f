"""Start, standby, handover and end: the node lock, and what an agent leaves behind."""

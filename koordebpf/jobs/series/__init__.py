"""Series that outlive the agent: a snapshot on disk."""

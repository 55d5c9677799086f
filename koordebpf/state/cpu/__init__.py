"""The node's CPUs: counters to rates, and one view of who may use which. Pure."""

"""The node's CPUs: rates from counters, and one view of which pods may use which CPUs. Pure."""

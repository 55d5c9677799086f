"""CPU burst: latency-sensitive pods go above their CPU limit for a while."""

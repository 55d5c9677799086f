"""Memory QoS: what pods request is protected, and what is above it throttled."""

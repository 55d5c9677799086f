"""Pods and their directories as memory QoS sees them."""

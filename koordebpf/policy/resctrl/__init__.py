"""Shares of L3 cache and memory bandwidth for each QoS class, by resctrl. Pure."""

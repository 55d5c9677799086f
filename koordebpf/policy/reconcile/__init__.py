"""Desired values of cgroup files and sysctls, and the order in which they are written. Pure."""

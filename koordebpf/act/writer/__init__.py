"""The one door for writes to cgroup files and /proc/sys: in order, only on difference, and reversible."""

"""Which pod a cgroup belongs to, through mkdir, rmdir and rename; the unknown stays visible. Pure."""

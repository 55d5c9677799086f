"""From counters and sizes to the usage of node, pods, containers and host applications. Pure."""

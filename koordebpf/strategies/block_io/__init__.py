"""Block IO: limits, weights and latencies of block devices, by NodeSLO and by a pod's own annotation."""

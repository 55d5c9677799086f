"""What labels and annotations of a pod say: QoS, priority, eviction, CPU placement."""

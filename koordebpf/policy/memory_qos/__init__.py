"""Memory QoS: memory.min, low, high and files of Anolis kernels, of pods and the directories above. Pure."""

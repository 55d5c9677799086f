"""Memory QoS: memory.min, low, high and what goes with them, of pods and of the directories above. Pure."""

"""Every read and write primitive of the kernel. Knows nothing of pods."""

"""What CPU burst is decided from, read of the kernel."""

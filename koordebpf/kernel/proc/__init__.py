"""/proc and /sys files of the whole machine, through fds that stay open."""

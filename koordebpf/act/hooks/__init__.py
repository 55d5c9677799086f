"""What runtime hooks want beside cgroup files: values of processes."""

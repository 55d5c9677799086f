"""Best-effort weight: best-effort pods weigh less while many tasks wait for the CPUs. A whole example."""

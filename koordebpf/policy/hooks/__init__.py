"""Runtime hooks: what Koordinator's pods get in their cgroups beside what kubelet writes. Pure."""

"""Where pods and configuration come from: API server, kubelet, files."""

"""The only door to the API server and the kubelet. Decides nothing."""

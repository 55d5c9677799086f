"""The only door to the API server, the kubelet and files with their objects. It reads and sends, and never decides."""

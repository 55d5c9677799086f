"""A cluster from outside of it: by a kubeconfig, with commands run in pods."""

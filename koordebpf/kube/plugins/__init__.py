"""Eviction plugins in processes of their own, as Katalyst's manager calls them: gRPC over Unix sockets."""

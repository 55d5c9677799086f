"""List and watch: a local store of one resource, kept up to date by a reflector."""

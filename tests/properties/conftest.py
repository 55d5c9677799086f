import tests.no_deadline  # noqa: F401

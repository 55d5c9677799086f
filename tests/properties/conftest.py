import tests.support.values.no_deadline  # noqa: F401

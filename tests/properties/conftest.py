import tests.support.values.profiles  # noqa: F401

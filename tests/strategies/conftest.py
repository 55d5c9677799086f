from tests.support.fixtures import logged, tree  # noqa: F401

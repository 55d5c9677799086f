"""What has to be closed, and is where the `with` block that it was opened for ends."""

from __future__ import annotations

import abc
from typing import Self


class Closing(abc.ABC):
    """Closes itself at the end of its `with` block, however that ends."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

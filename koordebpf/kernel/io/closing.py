"""What has to be closed, and is where the `with` block that it was opened for ends; and how worker threads end."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Iterable
from typing import Self


def have_ended(threads: Iterable[threading.Thread], within_s: float) -> bool:
    """Wait for threads, `within_s` for all of them together; return whether all ended."""
    deadline_s = time.monotonic() + within_s
    waited = list(threads)
    for thread in waited:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return not any(thread.is_alive() for thread in waited)


class Closing(abc.ABC):
    """Closes itself at the end of its `with` block, however that ends."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

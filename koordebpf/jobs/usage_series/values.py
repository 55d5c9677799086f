"""What an operator may set about the measuring of usage."""

from __future__ import annotations

import msgspec


class UsageSettings(msgspec.Struct, frozen=True):
    """What is measured beside CPU and memory.

    `page_cache` whether memory with page cache is recorded too, of node, pods, containers and host applications. Why
                 false: as koordlet's enable-pagecache-collector; it is a third more samples.
    """

    page_cache: bool = False

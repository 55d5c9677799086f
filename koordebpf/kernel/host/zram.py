"""zram devices: what is stored in them, and the memory that they hold for it."""

from __future__ import annotations

from pathlib import Path

from koordebpf.kernel.io.sysfs_file import text_or_none


def zram_use(sysfs: Path = Path("/sys")) -> tuple[int, int]:
    """Return what all zram devices together store and what they hold in memory for it, in bytes.

    Source:  Documentation/admin-guide/blockdev/zram.rst, mm_stat: orig_data_size, compr_data_size, mem_used_total.
    Cost:    20 µs a device.
    """
    stored = held = 0
    for device in sorted((sysfs / "block").glob("zram*")):
        words = (text_or_none(device / "mm_stat") or "").split()
        if len(words) >= 3 and all(word.isdigit() for word in words[:3]):
            stored += int(words[0])
            held += int(words[2])
    return stored, held

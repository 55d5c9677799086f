"""From percents to what the hardware takes: a mask of cache ways, a bandwidth."""

from __future__ import annotations

from koordebpf.policy.resctrl.settings import ResctrlSettings
from koordebpf.state.resctrl.measured import BandwidthInfo, CacheInfo


def cache_mask(info: CacheInfo, start_percent: int, end_percent: int) -> int | str:
    """Return the ways from one percent to another, or the rule that is broken.

    Both ends are rounded up to whole ways, as in koordlet; a mask of fewer ways than the hardware takes (min_cbm_bits)
    becomes one of so many, down from its end.

    >>> hex(cache_mask(CacheInfo(0x7FF, 1, ("L3",), (0,)), 0, 30))
    '0xf'
    """
    if info.cbm_mask & (info.cbm_mask + 1) or not info.cbm_mask:
        return f"cbm_mask is {info.cbm_mask:x}: must be ones from bit 0"
    if not 0 <= start_percent < end_percent <= 100:
        return "catRangeStartPercent must be below catRangeEndPercent, both 0 to 100"
    ways = info.cbm_mask.bit_count()
    first, last = -(-ways * start_percent // 100), -(-ways * end_percent // 100)
    least = min(max(info.min_cbm_bits, 1), ways)
    if last - first < least:
        last = max(last, least)
        first = last - least
    return (1 << last) - (1 << first)


def bandwidth(info: BandwidthInfo, percent: int, settings: ResctrlSettings) -> int | str:
    """Return what MB is to be, or the rule that is broken: rounded up to bandwidth_gran, at least min_bandwidth."""
    if not 1 <= percent <= 100:
        return "mbaPercent must be 1 to 100"
    if info.unit == "mbps":
        return "resctrl is mounted with mba_MBps: a percentage has no meaning"
    if percent == 100:
        return info.most
    wanted = settings.absolute_bandwidth * percent // 100 if info.unit == "absolute" else percent
    gran = max(info.bandwidth_gran, 1)
    return min(max(-(-wanted // gran) * gran, info.min_bandwidth, 1), info.most)

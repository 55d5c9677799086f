"""What a pod's annotation asks for of block devices: limits of its own.

Source: koordinator apis/slo/v1alpha1, AnnotationPodBlkioQoS and BlkIOQOS.
"""

from __future__ import annotations

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.strategies.resource_qos import Block

BLKIO_QOS_ANNOTATION = "koordinator.sh/blkioQOS"
MAX_BLOCKS = 32  # Why: more than a pod has volumes; an annotation may have 256 KiB
_MAX_CHARS = 32 << 10
_PATH = f"annotation {BLKIO_QOS_ANNOTATION}"


class _BlkIOQOS(msgspec.Struct):
    blocks: tuple[Block, ...] | None = None


def annotated_blocks(text: str) -> tuple[Block, ...]:
    """Return the blocks that an annotation names; an empty one names none.

    Raises:  ConfigError: it is not of its form, too long, or has too many.
    """
    if not text:
        return ()
    if len(text) > _MAX_CHARS:
        raise ConfigError(_PATH, text[:80], f"must be no longer than {_MAX_CHARS} characters")
    try:
        blocks = msgspec.json.decode(text, type=_BlkIOQOS).blocks or ()
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise ConfigError(_PATH, text[:80], str(error)) from None
    if len(blocks) > MAX_BLOCKS:
        raise ConfigError(f"{_PATH}: blocks", len(blocks), f"must be {MAX_BLOCKS} at the most")
    return blocks

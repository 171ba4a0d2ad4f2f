"""CRC-32 with zlib's polynomial, by the fastest implementation that is installed.

Takes: bytes, and the CRC-32 of the bytes before them. Gives: the CRC-32 of both. ISA-L takes 0.02 s a GB, zlib 0.24 to
0.37.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final


def _fastest() -> Callable[..., int]:
    try:
        from isal import isal_zlib
    except ImportError:  # isal has no wheel for this machine
        return zlib.crc32
    return isal_zlib.crc32


crc32: Final = _fastest()
"""`zlib.crc32`, or a faster function with the same results."""

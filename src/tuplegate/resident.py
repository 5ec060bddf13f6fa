"""Measures the memory of this process."""

import os
import resource
import sys

_PAGE_BYTES = resource.getpagesize()


def resident_bytes() -> int:
    try:
        described = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:  # without /proc: the most it ever had
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    try:
        return int(os.read(described, 128).split()[1]) * _PAGE_BYTES
    finally:
        os.close(described)

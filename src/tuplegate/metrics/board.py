"""Shared memory in which every worker posts its numbers for the others. The supervisor creates it before it forks.

A worker writes only its own slot. A slot has two halves: a worker writes the half that is not current, then changes a
number that says which half is. So a worker that is killed at any point leaves a complete snapshot, from which its
successor continues. A reader that was overtaken sees the number change and reads again.
"""

import mmap
import struct
import zlib

import msgspec

from tuplegate.metrics.sums import WorkerMetrics

HALF_BYTES = 512 * 1024
_SLOT_BYTES = 2 * HALF_BYTES
_HEAD = struct.Struct("=QQ")
_TRIES = 100

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerMetrics).decode


class DoesNotFit(Exception):
    """The snapshot does not fit into its half of the slot."""


class Board:
    """The slots of all workers. Untouched memory costs nothing, so a slot takes only what is written to it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._numbers = memoryview(mmap.mmap(-1, 16 * workers)).cast("Q")
        """Two numbers for each worker: how often it has written, and how often it has asked the others to write."""
        self._slots = memoryview(mmap.mmap(-1, _SLOT_BYTES * workers))

    # -- writing ------------------------------------------------------------------------------------------------

    def post(self, worker: int, snapshot: WorkerMetrics) -> None:
        body = _encode(snapshot)
        if len(body) > HALF_BYTES - _HEAD.size:
            raise DoesNotFit
        number = self._numbers[2 * worker] + 1
        half = self._half(worker, number)
        half[: _HEAD.size] = _HEAD.pack(len(body), zlib.crc32(body))
        half[_HEAD.size : _HEAD.size + len(body)] = body
        self._numbers[2 * worker] = number

    def ask(self, worker: int) -> None:
        """Ask the other workers to write their current numbers."""
        self._numbers[2 * worker + 1] += 1

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def asked(self) -> int:
        """A number that changes when a worker asks."""
        return sum(self._numbers[1::2].tolist())

    def count_posts(self, worker: int) -> int:
        """Return the number of times that the worker and its predecessors have written."""
        return self._numbers[2 * worker]

    def read(self, worker: int) -> WorkerMetrics | None:
        """Return the worker's newest snapshot; None if it has none, or if no complete one could be read."""
        for _ in range(_TRIES):
            number = self._numbers[2 * worker]
            if number == 0:
                return None
            half = self._half(worker, number)
            length, checksum = _HEAD.unpack(half[: _HEAD.size])
            body = bytes(half[_HEAD.size : _HEAD.size + min(length, HALF_BYTES)])
            if number == self._numbers[2 * worker] and zlib.crc32(body) == checksum:
                return _decode(body)
        return None

    def _half(self, worker: int, number: int) -> memoryview:
        start = worker * _SLOT_BYTES + (number % 2) * HALF_BYTES
        return self._slots[start : start + HALF_BYTES]

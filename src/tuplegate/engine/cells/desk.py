"""The supervisor's end of the lines to workers: takes their requests for cells, and tells them about each cell.

Contract: `attend` is called when a line has data, and several times a second in any case; more often while
`is_hurried`. Nothing here blocks.
"""

import socket
from collections.abc import Iterable
from contextlib import suppress

import structlog

from tuplegate.engine.cells.fleet import Halt
from tuplegate.engine.cells.keeper import Keeper, Tidings
from tuplegate.engine.cells.messages import AT_ONCE, KILLED, STARTED, Message, MessageSocket, Word

_log = structlog.get_logger()


class Desk:
    """Answers workers' requests for the cells of the keeper. A worker is known by its number."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._fleet = keeper.fleet
        self._lines: dict[int, MessageSocket] = {}
        self._waiting: dict[str, set[int]] = {}
        self._count_told = 0

    @property
    def descriptors(self) -> list[int]:
        return [line.end.fileno() for line in self._lines.values()]

    @property
    def is_hurried(self) -> bool:
        """Return whether a cell changes its state soon without a message."""
        return self._fleet.is_moving

    def open_line(self, worker: int, now: float) -> socket.socket:
        """Return a worker's end of a new line, and drop the line that a worker of that number had before."""
        self.drop_line(worker, now)
        ours, theirs = socket.socketpair()
        self._lines[worker] = MessageSocket(ours)
        self._send([worker], Message(Word.COUNT, "", self._count_told))
        return theirs

    def drop_line(self, worker: int, now: float) -> None:
        """Note that a worker has ended."""
        if line := self._lines.pop(worker, None):
            line.end.close()
            self._fleet.forget_worker(worker, now)
            for waiting in self._waiting.values():
                waiting.discard(worker)

    def abandon(self) -> None:
        """Forget the lines in a child of the supervisor. Do not close them: their numbers may stand for other files
        there."""
        for line in self._lines.values():
            line.end.detach()
        self._lines.clear()

    def close(self) -> None:
        """Stop the servers of all cells, and wait until they have ended."""
        self._keeper.close()

    def attend(self, now: float) -> None:
        """Carry out workers' requests and the keeper's rules, and tell workers the results."""
        for worker, line in self._lines.items():
            line.flush()
            with suppress(EOFError):  # the worker has ended, which whoever started it notices
                for message in line.read():
                    self._hear(worker, message, now)
        self._tell(self._keeper.tick(now), now)
        if self._count_told != self._fleet.awake_count:
            self._count_told = self._fleet.awake_count
            self._send(self._lines, Message(Word.COUNT, "", self._count_told))

    def _hear(self, worker: int, message: Message, now: float) -> None:
        cell, fleet = message.cell, self._fleet
        match message.word:
            case Word.WANT if fleet.is_withheld(cell):
                self._send([worker], Message(Word.WITHHELD, cell))
            case Word.WANT:
                if fleet.want(cell, now):
                    self._admit(worker, cell, now)
                else:
                    self._waiting.setdefault(cell, set()).add(worker)
            case Word.USE | Word.IDLE:
                fleet.note_use(cell, worker, message.number, now, in_use=message.word is Word.USE)
            case Word.RESTED:
                fleet.note_rest(cell, worker, message.number)
            case Word.HALT:
                halt = Halt(worker, message.number, message.text == AT_ONCE)
                fleet.halt(cell, halt)
                if halt.at_once:
                    self._keeper.kill(cell)
            case Word.RELEASE | Word.GONE:
                fleet.release(cell, Halt(worker, message.number), now, is_gone=message.word is Word.GONE)
            case Word.KILL:
                _log.error("a cell is killed", cell=cell, reason=message.text)
                self._keeper.kill(cell, f"{KILLED}{message.text}")
            case _:
                raise AssertionError(f"no worker says {message.word}")

    def _admit(self, worker: int, cell: str, now: float, text: str = "") -> None:
        """Tell a worker that the cell is awake. It counts as used until the worker says otherwise."""
        number = self._fleet.admit(cell, worker, now)
        self._send([worker], Message(Word.AWAKE, cell, number, text))

    def _tell(self, tidings: Tidings, now: float) -> None:
        for cell in tidings.awake:
            for worker in self._waiting.pop(cell, ()):
                self._admit(worker, cell, now, STARTED)
        for word, cells in ((Word.REST, tidings.ask_to_rest), (Word.LEAVE, tidings.ask_to_leave)):
            for cell in cells:
                for worker, number in self._fleet.list_stays(cell).items():
                    self._send([worker], Message(word, cell, number))
        for cell in tidings.busy:
            self._send(self._waiting.pop(cell, ()), Message(Word.BUSY, cell))
        for cell in (*tidings.withheld, *tidings.taken):
            self._send(self._waiting.pop(cell, ()), Message(Word.WITHHELD, cell))
        for cell in tidings.taken:
            self._send(self._fleet.list_stays(cell), Message(Word.WITHHELD, cell))
        for cell in tidings.failed:
            # Workers with connections to the cell must hear it, too.
            self._waiting.pop(cell, None)
            self._send(list(self._lines), Message(Word.FAILED, cell, text=self._fleet.find_reason(cell)))
        for cell, halt in tidings.halted:
            self._send([halt.worker], Message(Word.HALTED, cell, halt.number))

    def _send(self, workers: Iterable[int], message: Message) -> None:
        for worker in workers:
            if line := self._lines.get(worker):
                line.send(message)

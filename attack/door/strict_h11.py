"""h11 with the stricter rules on top, behind the interface of the service's reader.

It is the control of the comparison: a reader that agrees with h11 and refuses what the list names must pass. Where it
does not, a rule is missing from the list, or h11 and llhttp differ where no rule is listed yet.
"""

from dataclasses import dataclass

from attack.door.readings import BLANK_LINE, read_h11, reasons
from tuplegate.protocol.errors import ServiceError


@dataclass(frozen=True)
class Head:
    method: str
    target: bytes
    headers: dict[bytes, bytes]
    keep_alive: bool


@dataclass(frozen=True)
class End:
    pass


class StrictH11:
    """Reads the request that is not complete anew with every piece, which is slow and leaves little to go wrong."""

    def __init__(self) -> None:
        self._data = b""
        self._is_head_given = False
        self._waiting: list[Head | bytes | End] = []
        self._failed = ""

    def feed(self, data: bytes) -> None:
        if self._failed:
            return
        self._data += data
        reading = read_h11(self._data)
        edges = [*reading.begins, len(self._data)]
        for place, request in enumerate(reading.requests):
            found = [
                name for name in reasons(self._data[edges[place] : edges[place + 1]], request) if name != BLANK_LINE
            ]
            if found:
                self._failed = ", ".join(found)
                return
            if not self._is_head_given:
                self._waiting.append(Head(request.method, request.target, request.headers, request.keep_alive))
            self._is_head_given = not request.complete
            if request.complete:
                self._waiting += [request.body, End()]
        self._failed = reading.refusal or ""
        self._data = self._data[reading.read :]

    def next(self) -> Head | bytes | End | None:
        if self._waiting:
            return self._waiting.pop(0)
        if self._failed:
            raise ServiceError("malformed_request", self._failed)
        return None

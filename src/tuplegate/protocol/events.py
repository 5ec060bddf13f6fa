"""The events of a stream as bytes: Server-Sent Events, or one JSON object a line. Pure.

Rows come as lines of JSON, many at once. A whole block is framed by one replacement, because the JSON of the service
never contains a raw line break.
"""

from dataclasses import dataclass

from tuplegate.protocol.messages import StreamFormat


@dataclass(frozen=True, slots=True)
class Framing:
    """`before` and `after` enclose the JSON of one event of kind `%s`; `silence` is sent when nothing else is."""

    before: str
    after: bytes
    silence: bytes

    def event(self, kind: str, payload: bytes) -> bytes:
        return self.before.replace("%s", kind).encode() + payload + self.after

    def rows(self, lines: bytes) -> bytes:
        """Frame rows: `lines` is one row of JSON a line, each ended by a line feed."""
        if not lines:
            return b""
        before = self.before.replace("%s", "row").encode()
        return before + lines[:-1].replace(b"\n", self.after + before) + self.after


FRAMINGS: dict[StreamFormat, Framing] = {
    StreamFormat.SSE: Framing("event: %s\ndata: ", b"\n\n", b": still running\n\n"),
    StreamFormat.NDJSON: Framing('{"event":"%s","data":', b"}\n", b'{"event":"heartbeat","data":{}}\n'),
}

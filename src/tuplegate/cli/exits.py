"""The table of exit codes. docs/exit_codes.md is generated from it."""

from enum import IntEnum


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    SQL = 5
    NOT_THERE = 6
    TRY_LATER = 7
    UNKNOWN = 8
    OUTPUT = 9
    UNHEALTHY = 10
    FILE = 11
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: dict[Exit, str] = {
    Exit.DONE: "Done.",
    Exit.FAILED: "It failed in a way that has no code of its own; the message says how.",
    Exit.USAGE: "The command line is wrong, or there is no key, profile or file of the name given. Nothing was sent.",
    Exit.UNREACHABLE: "The service cannot be reached. Nothing was applied.",
    Exit.REFUSED: "The key is not valid, or has not the scope for it.",
    Exit.SQL: "The engine refused the statement. Nothing was applied.",
    Exit.NOT_THERE: "There is no such thing, or one of that name exists already, or its state does not allow it.",
    Exit.TRY_LATER: "The service is busy, its engine is away, or the quota is used up. Nothing was applied.",
    Exit.UNKNOWN: "The answer was lost: it may have been applied. Rows of a stream written so far count for nothing.",
    Exit.OUTPUT: "The output could not be written, as when the disk is full.",
    Exit.UNHEALTHY: "`doctor` found something wrong.",
    Exit.FILE: "A file cannot be read or written, or a row of it does not fit the table. Nothing was imported.",
    Exit.INTERRUPTED: "Interrupted by Ctrl-C. A statement that was running was cancelled.",
    Exit.PIPE: "Whoever read the output stopped reading, as `head` does.",
}

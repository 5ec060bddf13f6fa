# cython: language_level=3, boundscheck=False, wraparound=False
"""Rows of a result to JSON without an object for each value: what `values` does with the driver and msgspec, in a
fifth of the time. It is there where the hot path is compiled; see docs/decisions/0015-row-bytes.md.

The driver tells where a result lies in memory, and libpq's own functions read it there.
"""

import ctypes
import sys

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

from psycopg import pq

ctypedef char *(*Value)(void *, int, int) noexcept nogil
ctypedef int (*Number)(void *, int, int) noexcept nogil
ctypedef size_t (*Size)(void *) noexcept nogil

# The libpq that the driver was linked with and has loaded: no other could read its results.
_libpq = ctypes.CDLL(sys.modules[pq.PGresult.__module__].__file__)


cdef uintptr_t _address(str name) except 0:
    return ctypes.cast(getattr(_libpq, name), ctypes.c_void_p).value


cdef Value get_value = <Value> _address("PQgetvalue")
cdef Number get_length = <Number> _address("PQgetlength")
cdef Number is_null = <Number> _address("PQgetisnull")
cdef Size memory_size = <Size> _address("PQresultMemorySize")


def size_of(result):
    """Bytes that a result takes in memory."""
    return memory_size(<void *> <uintptr_t> result.pgresult_ptr)


cpdef enum Kind:
    TEXT
    NUMBER
    BOOLEAN
    JSON
    TIMESTAMP
    TIMESTAMPTZ
    BYTEA

cdef struct Column:
    int index
    Kind kind
    char *before
    Py_ssize_t before_size

cdef struct Buffer:
    char *data
    Py_ssize_t used
    Py_ssize_t size
    unsigned char seen  # the bits of all bytes of text

# What JSON must escape: the letter behind the backslash, u where there is none.
cdef char[256] escapes
for _byte in range(256):
    escapes[_byte] = ord("u") if _byte < 32 else 0
for _byte, _letter in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt'):
    escapes[_byte] = _letter

cdef char *HEX = b"0123456789abcdef"
cdef Py_ssize_t GUESSED_MAX = 1 << 20
cdef uint64_t ONES = 0x0101010101010101, HIGHS = 0x8080808080808080


cdef inline int reserve(Buffer *out, Py_ssize_t more) except -1:
    cdef Py_ssize_t size = out.used + more
    cdef char *data
    if size > out.size:
        size += size >> 1
        data = <char *> realloc(out.data, size)
        if data is NULL:
            raise MemoryError
        out.data, out.size = data, size
    return 0


cdef inline int put(Buffer *out, const char *data, Py_ssize_t size) except -1:
    reserve(out, size)
    memcpy(out.data + out.used, data, size)
    out.used += size
    return 0


cdef int put_text(Buffer *out, const unsigned char *text, Py_ssize_t size) except -1:
    """As a JSON string, without the closing quote."""
    cdef Py_ssize_t start = 0, at = 0
    cdef unsigned char byte, seen = 0
    cdef char letter
    cdef char *to
    cdef uint64_t eight, quotes, backslashes
    put(out, b'"', 1)
    while True:
        while at + 8 <= size:  # as long as there is nothing to escape in eight bytes at a time
            memcpy(&eight, text + at, 8)
            quotes, backslashes = eight ^ (ONES * 0x22), eight ^ (ONES * 0x5C)
            if (
                ((eight - ONES * 0x20) & ~eight)
                | ((quotes - ONES) & ~quotes)
                | ((backslashes - ONES) & ~backslashes)
            ) & HIGHS:
                break
            if eight & HIGHS:
                seen = 0x80
            at += 8
        while at < size:
            byte = text[at]
            if escapes[byte]:
                break
            seen |= byte
            at += 1
        put(out, <const char *> text + start, at - start)
        if at == size:
            break
        letter = escapes[byte]
        reserve(out, 6)
        to = out.data + out.used
        to[0], to[1] = b"\\", letter
        out.used += 2
        if letter == b"u":
            to[2], to[3], to[4], to[5] = b"0", b"0", HEX[byte >> 4], HEX[byte & 15]
            out.used += 4
        at += 1
        start = at
    out.seen |= seen
    return 0


cdef int put_json(Buffer *out, const unsigned char *text, Py_ssize_t size) except -1:
    """On one line: a line feed in JSON stands between values."""
    cdef Py_ssize_t at
    cdef unsigned char byte, seen = 0
    reserve(out, size)
    cdef char *to = out.data + out.used
    for at in range(size):
        byte = text[at]
        seen |= byte
        to[at] = b" " if byte == b"\n" or byte == b"\r" else byte
    out.used += size
    out.seen |= seen
    return 0


cdef int put_moment(Buffer *out, const unsigned char *text, Py_ssize_t size) except -1:
    """A date and a time, with a T between them."""
    cdef Py_ssize_t start = out.used
    cdef char *space
    put_text(out, text, size)
    space = <char *> memchr(out.data + start, b" ", out.used - start)
    if space is not NULL:
        space[0] = b"T"
    return 0


cdef class RowWriter:
    """Writes the rows of results that have the same columns.

    `columns` are the index of each, its kind, and what stands before its value; `end` stands behind a row's last.
    `odd` is asked for the JSON of a value that is not like others of its kind, by the column's index and the text.
    """

    cdef Column *_columns
    cdef int _count
    cdef list _texts
    cdef bytes _end
    cdef object _odd
    cdef Py_ssize_t _row_size

    def __cinit__(self, columns, bytes end, odd):
        cdef int number
        self._count = len(columns)
        self._columns = <Column *> malloc((self._count + 1) * sizeof(Column))
        if self._columns is NULL:
            raise MemoryError
        self._texts = [before for _, _, before in columns]
        for number, (index, kind, before) in enumerate(columns):
            self._columns[number] = Column(index, kind, PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
        self._end = end
        self._odd = odd
        self._row_size = 64

    def __dealloc__(self):
        free(self._columns)

    def write(self, result, int end, bytes between, bytes last = b"", int first = 0):
        """The rows of the result from `first` up to `end`. Raises UnicodeDecodeError where a text is not UTF-8."""
        cdef void *address = <void *> <uintptr_t> result.pgresult_ptr
        cdef Buffer out
        cdef int row, rows = end - first
        out.used = out.seen = 0
        out.size = min(self._row_size * rows, GUESSED_MAX) + 64
        out.data = <char *> malloc(out.size)
        if out.data is NULL:
            raise MemoryError
        try:
            for row in range(first, end):
                if row > first:
                    put(&out, PyBytes_AS_STRING(between), PyBytes_GET_SIZE(between))
                self._write_row(&out, address, row)
            if rows:
                put(&out, PyBytes_AS_STRING(last), PyBytes_GET_SIZE(last))
                self._row_size = out.used // rows + 16
            if out.seen & 0x80:
                PyUnicode_DecodeUTF8(out.data, out.used, NULL)
            return PyBytes_FromStringAndSize(out.data, out.used)
        finally:
            free(out.data)

    cdef int _write_row(self, Buffer *out, void *result, int row) except -1:
        cdef Column *column
        cdef int number, size
        cdef const unsigned char *text
        for number in range(self._count):
            column = &self._columns[number]
            put(out, column.before, column.before_size)
            size = get_length(result, row, column.index)
            if size == 0 and is_null(result, row, column.index):
                put(out, b"null", 4)
                continue
            text = <const unsigned char *> get_value(result, row, column.index)
            if column.kind == TEXT:
                put_text(out, text, size)
                put(out, b'"', 1)
            elif size == 0:
                self._write_odd(out, column.index, b"")
            elif column.kind == NUMBER:
                if text[size - 1] == b"N" or text[size - 1] == b"y":  # NaN and Infinity are no JSON numbers
                    put_text(out, text, size)
                    put(out, b'"', 1)
                else:
                    put(out, <const char *> text, size)
            elif column.kind == BOOLEAN:
                if text[0] == b"t":
                    put(out, b"true", 4)
                else:
                    put(out, b"false", 5)
            elif column.kind == JSON:
                put_json(out, text, size)
            elif column.kind == TIMESTAMP and text[size - 1] != b"C":
                put_moment(out, text, size)
                put(out, b'"', 1)
            elif column.kind == TIMESTAMPTZ and size > 3 and memcmp(text + size - 3, b"+00", 3) == 0:
                put_moment(out, text, size - 3)
                put(out, b'Z"', 2)
            elif column.kind == BYTEA and size > 1 and text[0] == b"\\" and text[1] == b"x":
                put_text(out, text, size)
                put(out, b'"', 1)
            else:
                self._write_odd(out, column.index, text[:size])
        put(out, PyBytes_AS_STRING(self._end), PyBytes_GET_SIZE(self._end))
        return 0

    cdef int _write_odd(self, Buffer *out, int column, bytes text) except -1:
        cdef bytes json = self._odd(column, text.decode())
        put(out, PyBytes_AS_STRING(json), PyBytes_GET_SIZE(json))
        out.seen |= 0x80
        return 0

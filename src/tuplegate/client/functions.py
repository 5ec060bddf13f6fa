"""Types of the functions that a client calls, with await and without."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

_A = TypeVar("_A")
_R = TypeVar("_R")

AsyncFunction = Callable[[_A], Awaitable[_R]]
Function = Callable[[_A], _R]

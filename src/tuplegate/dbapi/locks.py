"""The lock that keeps requests of one connection apart, for both halves of the package."""

import asyncio
import threading

AsyncLock = asyncio.Lock
Lock = threading.Lock

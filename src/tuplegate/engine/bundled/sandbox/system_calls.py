"""A filter of system calls (seccomp): refuses calls that a database server never needs, in it and all that it starts.

The filter closes gaps of Landlock, which judges neither `connect` to the path of a Unix socket nor UDP: so only Unix
stream sockets can be made, and none can connect or send to an address. Landlock does not judge `chmod` and its kin
either, which change a neighbour's files if both have one user, nor leases, which hold up anybody who opens a file. The
filter also refuses the parts of the kernel that have had the most holes: namespaces, mounts, io_uring, BPF, keys,
memory of other processes.

Contract: `install` is called in a child before exec, after `no_new_privs` was set; `is_known` tells whether the system
call numbers of this processor are known here. A program for another processor is killed.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Mapping
from functools import cache
from typing import Final

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _BY_FILTER = 21, 22, 2

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _GIVE = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
"""Instructions: load a word, jump if equal, if at least, if any bit is set; keep some bits; give a verdict."""
_NUMBER, _PROCESSOR, _FIRST, _SECOND = 0, 4, 16, 24
"""The offsets of the call's number, the processor, and the low words of the first two arguments."""
_ALLOW, _KILL, _ANSWER = 0x7FFF0000, 0x80000000, 0x00050000
_X32: Final = 0x40000000
"""Calls of x86_64's second interface have numbers from this one on."""

_PROCESSORS: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""By machine: the kernel's name of the processor, and the column of the table below."""

_Calls = Mapping[str, tuple[int | None, int | None]]
"""Calls by their numbers on x86_64 and aarch64; None where a processor has no such call."""

_UNIX, _STREAM, _KIND_OF_SOCKET = 1, 1, 0xF
_NOT_AS_A_CHILD: Final = 0x7E028000
"""Of clone: new namespaces, and a child of one's parent."""

_REFUSED: Final[_Calls] = {
    # Reaching others over sockets: a datagram of a pair can be sent to any path.
    "connect": (42, 203),
    "socketpair": (53, 199),
    # Without the calls above, io_uring could still make them.
    "io_uring_setup": (425, 425),
    # Files by their path, which Landlock does not judge.
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "setxattrat": (463, 463),
    "getxattrat": (464, 464),
    "listxattrat": (465, 465),
    "removexattrat": (466, 466),
    "file_getattr": (468, 468),
    "file_setattr": (469, 469),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # Resources that all processes of a user or machine share, and parts of the kernel that no server needs.
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "io_setup": (206, 0),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "sync": (162, 81),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
"""These calls fail."""

_MISSING: Final[_Calls] = {"clone3": (435, 435), "fchmodat2": (452, 452)}
"""The kernel seems not to have these calls: callers then make older ones, whose arguments a filter can see."""

_IGNORED: Final[_Calls] = {"chmod": (90, None), "fchmodat": (268, 53)}
"""These calls do nothing and succeed. PostgreSQL changes the mode of its socket, which the umask has set already, and
ends if it may not."""

_FOR_ITSELF: Final = {
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "prlimit64": (302, 261),
}
"""A process may make these calls only about itself, which it names by 0."""

_SOCKET: Final = (41, 198)
_CLONE: Final = (56, 220)
_FCNTL: Final = (72, 25)
_PRCTL: Final = (157, 167)
_CONTROLS: Final = (8, 10, 15, 1024, 1026)
"""Commands of fcntl: they send others signals about files, take leases, or watch a directory."""
_SET_DEATH_SIGNAL: Final = 1

_Step = tuple[int, int, int, int]
"""An instruction: its code, how far to jump if it is true, how far if not, and its number."""


def is_known() -> bool:
    """Return whether the kernel filters calls, and their numbers on this machine are in the table."""
    if sys.platform != "linux" or os.uname().machine not in _PROCESSORS:
        return False
    return int(_LIBC.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)) >= 0


def install(*, keeps_death_signal: bool) -> None:
    """Filter the system calls of this process from now on. Raises OSError.

    `keeps_death_signal`: a call to change the parent-death signal does nothing and succeeds. The first process of a
    namespace must keep its own. Without a namespace, PostgreSQL's processes need the call, since they do not end with
    the first one.
    """
    steps = _write_filter(os.uname().machine, keeps_death_signal=keeps_death_signal)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    if _LIBC.prctl(_PR_SET_SECCOMP, _BY_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


@cache
def _write_filter(machine: str, *, keeps_death_signal: bool) -> tuple[_Step, ...]:
    processor, column = _PROCESSORS[machine]
    refuse, missing, ignore = _ANSWER | errno.EPERM, _ANSWER | errno.ENOSYS, _ANSWER
    steps: list[_Step] = [
        (_LOAD, 0, 0, _PROCESSOR),
        (_EQUAL, 1, 0, processor),
        (_GIVE, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_GIVE, 0, 0, refuse),
    ]
    for calls, verdict in ((_REFUSED, refuse), (_MISSING, missing), (_IGNORED, ignore)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                steps += [(_EQUAL, 0, 1, number), (_GIVE, 0, 0, verdict)]
    for numbers in _FOR_ITSELF.values():
        steps += _judge(numbers[column], [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, 0), (_GIVE, 0, 0, refuse)])
    steps += _judge(_CLONE[column], [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NOT_AS_A_CHILD), (_GIVE, 0, 0, refuse)])
    kinds = [step for kind in _CONTROLS for step in ((_EQUAL, 0, 1, kind), (_GIVE, 0, 0, refuse))]
    steps += _judge(_FCNTL[column], [(_LOAD, 0, 0, _SECOND), *kinds])
    if keeps_death_signal:
        question = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, _SET_DEATH_SIGNAL), (_GIVE, 0, 0, ignore)]
        steps += _judge(_PRCTL[column], question)
    steps += _judge(
        _SOCKET[column],
        [
            (_LOAD, 0, 0, _FIRST),
            (_EQUAL, 1, 0, _UNIX),
            (_GIVE, 0, 0, refuse),
            (_LOAD, 0, 0, _SECOND),
            (_MASK, 0, 0, _KIND_OF_SOCKET),
            (_EQUAL, 1, 0, _STREAM),
            (_GIVE, 0, 0, refuse),
        ],
    )
    return (*steps, (_GIVE, 0, 0, _ALLOW))


def _judge(number: int, question: list[_Step]) -> list[_Step]:
    """Return steps that apply `question` to one call, and allow it unless the question refuses it."""
    return [(_EQUAL, 0, len(question) + 1, number), *question, (_GIVE, 0, 0, _ALLOW)]

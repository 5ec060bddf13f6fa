"""A program that tries to leave its sandbox. `tests/engine/test_sandbox.py` starts it, and reads its answers.

It is given the neighbour's directory, socket and process, and a directory and a directory of sockets of its own. It
writes a line for each attempt: its name, and "done" or the error.
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "unshare": 272, "clone": 56, "clone3": 435, "mount": 165}
    | {"io_uring_setup": 425, "bpf": 321, "keyctl": 250, "userfaultfd": 323, "shmget": 29, "pidfd_getfd": 438}
    | {"semget": 64, "msgget": 68, "mq_open": 240, "io_setup": 206, "file_setattr": 469},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "unshare": 97, "clone": 220, "clone3": 435, "mount": 40}
    | {"io_uring_setup": 425, "bpf": 280, "keyctl": 219, "userfaultfd": 282, "shmget": 194, "pidfd_getfd": 438}
    | {"semget": 190, "msgget": 186, "mq_open": 180, "io_setup": 0, "file_setattr": 469},
}[os.uname().machine]
NEW_USER, NEW_PROCESSES, SIBLING = 0x10000000, 0x20000000, 0x8000
MAKE = 0o1600


def call(name: str, *arguments: object) -> int:
    result = int(LIBC.syscall(NUMBERS[name], *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def connect(family: int, kind: int, address: str | tuple[str, int]) -> None:
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        sock.connect(address)


def send_datagram(address: tuple[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"hello", address)


def send_of_a_pair(path: str) -> None:
    """Send from a socket that can neither be made alone nor connect."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        pair[0].sendto(b"hello", path)
    finally:
        for sock in pair:
            sock.close()


def lease(path: Path) -> None:
    """Hold up whoever opens the file."""
    path.write_text("mine")
    with path.open("r") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)


def run_shell() -> None:
    child = os.fork()
    if child == 0:
        try:
            os.execv("/bin/sh", ["sh", "-c", "exit 0"])
        except OSError as exc:
            os._exit(exc.errno or 1)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(status, os.strerror(status))


def clone(flags: int) -> None:
    if call("clone", flags | signal.SIGCHLD, None, None, None, None) == 0:
        os._exit(0)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()


def list_attempts(there: Path, path: str, pid: int, port: int, key: int) -> dict[str, Callable[[], object]]:
    """Return what is forbidden, by name. `there`, `path` and `pid` are a neighbour's; `key` is of its shared memory."""
    secret, here = there / "secret", Path.cwd()
    return {
        "read a file": secret.read_text,
        "write a file": lambda: secret.write_text("mine"),
        "make a file": lambda: (there / "new").write_text("mine"),
        "list a directory": lambda: os.listdir(there),
        "remove a file": lambda: os.unlink(secret),
        "move a file away": lambda: os.rename(secret, here / "secret"),
        "move a file there": lambda: os.rename(here / "own", there / "own"),
        "link a file": lambda: os.link(secret, here / "link"),
        "lay a link": lambda: os.symlink(secret, here / "symbolic"),
        "make a pipe": lambda: os.mkfifo(here / "pipe"),
        "cut a file": lambda: os.truncate(secret, 0),
        "age a file": lambda: os.utime(secret, (0, 0)),
        "give a file away": lambda: os.chown(secret, os.getuid(), os.getgid()),
        "mark a file": lambda: os.setxattr(secret, "user.mark", b"mine"),
        "change a file's flags": lambda: call("file_setattr", -100, str(secret).encode(), bytes(24), 24, 0),
        "hold a lease": lambda: lease(here / "leased"),
        "watch a directory": lambda: fcntl.fcntl(os.open(here, os.O_RDONLY), fcntl.F_NOTIFY, 1),
        "read a system file": lambda: Path("/etc/hostname").read_text(),
        "read /proc": lambda: Path("/proc/self/environ").read_text(),
        "make shared memory": lambda: Path("/dev/shm/tuplegate-intruder").write_text("mine"),
        "run a shell": run_shell,
        "connect to a socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, path),
        "connect to an abstract socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + there.name),
        "send to a socket": lambda: connect(socket.AF_UNIX, socket.SOCK_DGRAM, path),
        "send from a pair of sockets": lambda: send_of_a_pair(path),
        "connect over TCP": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port)),
        "send over UDP": lambda: send_datagram(("127.0.0.1", port)),
        "ask the kernel over netlink": lambda: socket.socket(16, socket.SOCK_RAW).close(),
        "see a process": lambda: os.kill(pid, 0),
        "stop a process": lambda: os.kill(pid, signal.SIGSTOP),
        "trace a process": lambda: call("ptrace", 16, pid, None, None),
        "read a process's memory": lambda: call("process_vm_readv", pid, None, 0, None, 0, 0),
        "take a process's descriptor": lambda: call("pidfd_getfd", 0, 0, 0),
        "limit a process": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (9, 9)),
        "move a process": lambda: os.sched_setaffinity(pid, {0}),
        "slow all processes of the user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
        "make a namespace": lambda: call("unshare", NEW_USER),
        "fork into a namespace": lambda: clone(NEW_USER | NEW_PROCESSES),
        "fork a sibling": lambda: clone(SIBLING),
        "fork unseen": lambda: call("clone3", None, 0),
        "mount": lambda: call("mount", b"none", str(here).encode(), b"tmpfs", 0, None),
        "use io_uring": lambda: call("io_uring_setup", 1, None),
        "use BPF": lambda: call("bpf", 0, None, 0),
        "use keys": lambda: call("keyctl", 0, -3, 0),
        "use userfaultfd": lambda: call("userfaultfd", 0),
        "make semaphores": lambda: call("semget", key, 1, MAKE),
        "make a queue": lambda: call("msgget", key, MAKE),
        "make a POSIX queue": lambda: call("mq_open", b"tuplegate", os.O_CREAT | os.O_RDWR, 0o600, None),
        "make files in memory": lambda: os.close(os.memfd_create("mine")),
        "use asynchronous files": lambda: call("io_setup", 1, ctypes.byref(ctypes.c_ulong())),
        "find shared memory": lambda: call("shmget", key, 0, 0),
    }


def lock(path: Path) -> None:
    """Lock a file that may not be opened to read or write, by the ways that Landlock does not judge."""
    for flags in (os.O_ACCMODE, os.O_RDONLY):
        fcntl.flock(os.open(path, flags), fcntl.LOCK_EX | fcntl.LOCK_NB)


def enter(directory: Path) -> None:
    """Be in a directory, and come back."""
    here = os.open(".", os.O_PATH)
    os.chdir(directory)
    os.fchdir(here)
    os.close(here)


def list_glances(there: Path) -> dict[str, Callable[[], object]]:
    """Return what only a namespace of mounts forbids, and it in this way: nothing of the neighbour exists."""
    secret = there / "secret"
    return {
        "ask for a file's size": secret.stat,
        "ask for a directory's times": there.stat,
        "ask for a directory's times from within": lambda: os.stat("../there"),
        "ask for the file system": lambda: os.statvfs(there),
        "ask whether a file is there": lambda: os.stat(os.open(secret, os.O_PATH)),
        "enter a directory": lambda: enter(there),
    }


def list_hidden(there: Path) -> dict[str, Callable[[], object]]:
    """Return what Landlock forbids anyway, and what fails in a namespace of mounts since nothing is there."""
    return {
        "lock a file": lambda: lock(there / "secret"),
        "lock a directory": lambda: lock(there),
        "list a directory": lambda: os.listdir(there),
        "read a file": (there / "secret").read_text,
    }


def list_needs(sockets: Path) -> dict[str, Callable[[], object]]:
    """Return what a server needs, by name."""
    here = Path.cwd()
    return {
        "write an own file": lambda: (here / "own").write_text("mine"),
        "move an own file": lambda: os.rename(here / "own", here / "moved"),
        "make an own directory": lambda: os.mkdir(here / "directory"),
        "move into an own directory": lambda: os.rename(here / "moved", here / "directory" / "own"),
        "listen": lambda: listen(sockets / "socket"),
        "set the mode of a file": lambda: os.chmod(sockets / "socket", 0o700),
        "limit itself": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        "read a library": lambda: os.listdir("/usr/lib"),
        "lock an own file": lambda: fcntl.flock(os.open(here, os.O_RDONLY), fcntl.LOCK_EX),
        "write to nowhere": lambda: Path("/dev/null").write_text("nothing"),
    }


def attempt(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as exc:
        return errno.errorcode.get(exc.errno or 0, str(exc))
    return "done"


def main() -> None:
    there, path, pid, port, key, sockets = sys.argv[1:]
    attempts = list_attempts(Path(there), path, int(pid), int(port), int(key))
    everything = list_needs(Path(sockets)) | attempts | list_hidden(Path(there)) | list_glances(Path(there))
    for name, work in everything.items():
        print(f"{name}: {attempt(work)}", flush=True)


if __name__ == "__main__":
    main()

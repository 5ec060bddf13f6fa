"""Native code in a cell: attempts on neighbours, and strains on what all processes of a machine share.

Everything is bounded in number and time: it runs on a machine that others use.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
from tests.service import Service

from attack.fake_server import Insider
from attack.party import Party, new_party

_HEAD = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
static char words[6][200];
static void attack(void);
__attribute__((constructor)) static void begin(void) {
    FILE *order = fopen("order", "r");
    if (!order) return;
    for (int i = 0; i < 6 && fgets(words[i], sizeof words[i], order); i++) words[i][strcspn(words[i], "\n")] = 0;
    fclose(order);
    attack();
}
"""
_REACH = r"""
static FILE *answers;
static void tell(const char *name, long result) { fprintf(answers, "%s: %s\n", name, result < 0 ? "no" : "done"); }
static char *at(const char *place, const char *name) {
    static char path[2][512]; static int turn; turn = !turn;
    snprintf(path[turn], 512, "%s/%s", place, name); return path[turn];
}
static long meet(const char *path) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    strncpy(place.sun_path, path, sizeof place.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return fd < 0 ? -1 : connect(fd, (struct sockaddr *)&place, sizeof place);
}
static void attack(void) {
    char *there = words[0], *service = words[1], *run = words[2];
    int worker = atoi(words[3]), server = atoi(words[4]);
    answers = fopen("answers", "w");
    tell("read a neighbour's file", open(at(there, "data/PG_VERSION"), O_RDONLY));
    tell("write a neighbour's file", open(at(there, "data/PG_VERSION"), O_WRONLY));
    tell("make a neighbour's file", open(at(there, "data/mine"), O_WRONLY | O_CREAT, 0600));
    tell("remove a neighbour's file", unlink(at(there, "data/PG_VERSION")));
    tell("move a neighbour's file", rename(at(there, "data/PG_VERSION"), "taken"));
    tell("link a neighbour's file", link(at(there, "data/PG_VERSION"), "linked"));
    tell("remove a neighbour's socket", unlink(at(there, "run/.s.PGSQL.5432")));
    tell("replace a neighbour's socket", rename(at(run, ".s.PGSQL.5432.lock"), at(there, "run/.s.PGSQL.5432")));
    tell("connect to a neighbour", meet(at(there, "run/.s.PGSQL.5432")));
    tell("connect to the catalog", meet(at(service, "run/.s.PGSQL.5432")));
    tell("read the catalog's files", open(at(service, "postgres/PG_VERSION"), O_RDONLY));
    tell("write the catalog's files", open(at(service, "postgres/PG_VERSION"), O_WRONLY));
    tell("list the cells", open(at(service, "cells"), O_RDONLY | O_DIRECTORY));
    tell("read what cells are made of", open(at(service, "prepared/template"), O_RDONLY));
    tell("lay a link to a neighbour", symlink(there, "link"));
    tell("put a link into the place of its socket", symlink(at(there, "run/.s.PGSQL.5432"), at(run, "link")));
    tell("make a pipe", mkfifo("pipe", 0600));
    tell("signal a worker", kill(worker, SIGSTOP));
    tell("signal a neighbour", kill(server, SIGKILL));
    tell("trace a worker", ptrace(PTRACE_ATTACH, worker, 0, 0));
    tell("connect over TCP", socket(AF_INET, SOCK_STREAM, 0));
    tell("share memory with others", open("/dev/shm/mine", O_RDWR | O_CREAT, 0600));
    tell("run a shell", access("/bin/sh", X_OK) ? -1 : open("/bin/sh", O_RDONLY) < 0 ? -1 : 0);
    fclose(answers);
}
"""
ATTEMPTS = _REACH.count('tell("')

_STRAINS = {
    "large_file": r"""
static void attack(void) {
    int fd = open("large", O_RDWR | O_CREAT, 0600);
    for (long i = 0; i < 8; i++) posix_fallocate(fd, i << 28, 1 << 28);
}
""",
    "many_names": r"""
static void attack(void) {
    char name[64];
    mkdir("names", 0700);
    for (int i = 0; i < 20000; i++) { snprintf(name, 64, "names/%d", i); close(open(name, O_RDWR | O_CREAT, 0600)); }
}
""",
    "deep_directories": r"""
static void attack(void) { for (int i = 0; i < 3000; i++) { mkdir("d", 0700); if (chdir("d")) break; } }
""",
    "many_processes": r"""
static void attack(void) {
    for (int i = 0; i < 400; i++) if (fork() == 0) { setsid(); signal(SIGTERM, SIG_IGN); sleep(10); _exit(0); }
}
""",
    "many_descriptors": r"""
static void attack(void) {
    for (int i = 0; i < 20; i++) if (fork() == 0) {
        while (open("/dev/null", O_RDONLY) >= 0);
        sleep(10); _exit(0);
    }
}
""",
    "much_memory": r"""
static void attack(void) {
    for (int i = 0; i < 4; i++) {
        char *many = mmap(0, 1 << 28, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (many == MAP_FAILED) break;
        memset(many, 1, 1 << 26);
    }
    sleep(3);
}
""",
    "long_log": r"""
static void attack(void) {
    static char line[65536]; memset(line, 'x', sizeof line);
    for (int i = 0; i < 4000; i++) if (write(2, line, sizeof line) < 0) break;
}
""",
}
_LOOKS_S = 12.0


def reach_out(service: Service, neighbour: str, pids: Sequence[int]) -> list[str]:
    """Try to reach a neighbour, the catalog and the service from inside of a cell. Return what could be done."""
    party = new_party(service, "inside-reaching")
    try:
        insider = Insider(service, party.database)
        there = service.cells.directory.locate(neighbour)
        server = _find_server(service, there)
        words = [there, service.data_dir, insider.place / "run", pids[0], server]
        insider.load(_HEAD + _REACH, "\n".join(map(str, words)))
        insider.close()
        answers = (insider.place / "data" / "answers").read_text().splitlines()
    finally:
        party.close()
    assert len(answers) == ATTEMPTS, answers
    return [answer.removesuffix(": done") for answer in answers if answer.endswith(": done")]


def _find_server(service: Service, place: Path) -> int:
    """Return the process id of a cell's server; its own pid file has the number that it has inside."""
    pid = service.process.pid
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return next(child for child in children if os.readlink(f"/proc/{child}/cwd") == str(place / "data"))


def _strain(code: str) -> Callable[[Service, Party], None]:
    def run(service: Service, party: Party) -> None:
        deadline = time.monotonic() + _LOOKS_S
        insider = Insider(service, party.database)
        try:
            insider.load(_HEAD + code)
        except psycopg.Error:
            pass  # its server was ended for that
        while time.monotonic() < deadline and party.query("select 1 as one").succeeded:
            time.sleep(0.2)
        insider.close()

    return run


STRAINS = {name: _strain(code) for name, code in _STRAINS.items()}
"""Each returns when the cell answers no more, or after some seconds."""

"""Load by Neon's own driver in Node.js, against a server that speaks its protocol."""

import json
import os
import subprocess
from pathlib import Path

from bench.load import Outcome
from bench.peers import workloads
from bench.peers.install import PATH
from bench.peers.servers import PROGRAMS, Server
from bench.peers.workloads import USERS

GRACE_S = 30.0


def run_load(driver: Path, server: Server, connections: int, seconds: float) -> Outcome:
    """Run as many queries at once as there are connections; the driver opens as many."""
    program = driver / "neon_load.mjs"  # where it finds its packages
    program.write_text((PROGRAMS / "neon_load.mjs").read_text())
    given = {
        "endpoint": f"{server.url}/sql",
        "connection": server.neon_connection(),
        "query": workloads.point_with("$1"),
        "numbers": USERS,
        "at_once": connections,
        "seconds": seconds,
    }
    done = subprocess.run(
        ["node", str(program), json.dumps(given)],
        env={**os.environ, "PATH": PATH},
        capture_output=True,
        text=True,
        timeout=seconds + GRACE_S,
        check=True,
    )
    return Outcome(**json.loads(done.stdout))

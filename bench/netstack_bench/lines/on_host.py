"""Makes one run over hosts, as a process on the host that it runs on.

Takes: on standard input, the settings of a `MeshSpec` and the path of the secret file, as JSON. Gives: the document of
the run as JSON on standard output, or {"error": text}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from netstack.base.errors import NetstackError

from ..places.hosts.coordinator import run_over_hosts
from ..places.hosts.spec import MeshSpec


def main() -> int:
    """Returns the exit code."""
    asked = json.load(sys.stdin)
    try:
        result = run_over_hosts(MeshSpec.from_dict(asked["spec"]), secret_file=Path(asked["secret_file"]))
    except NetstackError as error:
        result = {"error": str(error)}
    json.dump(result, sys.stdout)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())

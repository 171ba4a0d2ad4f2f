"""Runs `netstack-bench`, also as `python -m netstack_bench`.

Importing the commands takes most of a second; Ctrl-C in that time ends with one line too.
"""

from __future__ import annotations

import signal
import sys

from netstack.base.text.safe_text import escape_unencodable


def main() -> int:
    """Runs the command of `sys.argv` and returns its exit code."""
    escape_unencodable()
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        error, code = "stopped by Ctrl-C before anything was measured", 128 + signal.SIGINT
        if "--json" in sys.argv:
            sys.stdout.write(f'{{"error": "{error}", "exit_code": {code}, "delivered": false}}\n')
        sys.stderr.write(f"netstack-bench: {error}\n")
        return code
    return run()


if __name__ == "__main__":
    sys.exit(main())

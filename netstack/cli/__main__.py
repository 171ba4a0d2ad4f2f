"""`python -m netstack.cli` is the command `netstack`."""

from __future__ import annotations

import sys

from . import main

sys.exit(main())

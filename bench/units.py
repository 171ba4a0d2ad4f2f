"""See `netstack.units`."""

from netstack.units import *  # noqa: F403

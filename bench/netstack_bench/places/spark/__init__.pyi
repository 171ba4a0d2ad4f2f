"""The public names of this package, each once: `lazy_names` imports one when it is first used."""

from .answers import (
    compare as compare,
    recommend as recommend,
    register_views as register_views,
    regressions as regressions,
)
from .frames import per_setting as per_setting
from .sweep import run_sweep as run_sweep

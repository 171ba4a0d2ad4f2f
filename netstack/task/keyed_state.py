"""State by key that the runtime keeps for an operator: in every checkpoint, and shared out anew with the key groups.

Takes: keys and values of the operator. Gives: a dict, copies of it for checkpoints.

Rules: a key belongs to the subtask that the records of this key come to, so only operators whose inputs are all keyed
have such state, and they use the keys of those inputs. Values are plain data (see `checkpoint.snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from ..errors import ConfigError

_FIXED: Final = frozenset({type(None), bool, int, float, str, bytes})
"""What cannot change, so that a copy of the dict is a copy of its values."""


@final
class KeyedState(dict[Any, Any]):
    """One named state of one operator: a value for each key; a key without one gets the default when it is asked for.

    `state[key]`, `state.get(key)`, `del state[key]`: it is a dict.
    """

    __slots__ = ("_check", "_default", "_make")

    def __init__(self, default: Any, check: Callable[[Any], None] | None = None) -> None:
        """Starts empty.

        Args:
            default: what a new key gets: a value that cannot change, or something to call for each, such as `list`.
            check: refuses a new key that is not this subtask's.

        Raises:
            ConfigError: a value that could be changed, and would then be every key's.
        """
        super().__init__()
        self._make: Callable[[], Any] | None = default if callable(default) else None
        if self._make is None and type(default) not in _FIXED and type(default) is not tuple:
            raise ConfigError(
                f"a default of {type(default).__name__} would be shared by all keys; give something to call for each,"
                f" such as {type(default).__name__}"
            )
        self._default = default
        self._check = check

    def __missing__(self, key: Any) -> Any:
        if self._check is not None:  # once for every key, so it may take its time
            self._check(key)
        value = self._default if self._make is None else self._make()
        self[key] = value
        return value

    def copy_for_checkpoint(self) -> dict[Any, Any]:
        """What it holds now; nothing of it changes when the operator goes on."""
        return {key: value if value.__class__ in _FIXED else plain_copy(value) for key, value in self.items()}


def plain_copy(value: Any) -> Any:
    """Plain data of its own: nothing of it changes when the original does."""
    if type(value) in _FIXED:
        return value
    if isinstance(value, Mapping):
        return {key: plain_copy(inner) for key, inner in value.items()}
    if type(value) is list:
        return [plain_copy(inner) for inner in value]
    if type(value) is tuple:
        return tuple(plain_copy(inner) for inner in value)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value

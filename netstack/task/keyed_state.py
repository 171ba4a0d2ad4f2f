"""State by key that the runtime keeps for an operator: in every checkpoint, and shared out anew with the key groups.

Takes: keys and values of the operator. Gives: a mapping, copies of it for checkpoints.

Rules: a key belongs to the subtask that the records of this key come to, so only operators whose inputs are all keyed
have such state, and they use the keys of those inputs. Keys are one where placement says so (`canonical_key`): inside,
what stands for a key is its canonical form; outside, nobody sees it. Values are plain data (see `checkpoint.snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping
from typing import Any, Final, final

from ..errors import ConfigError
from ..keygroups import PLAIN_KEYS, canonical_key, original_key

_FIXED: Final = frozenset({type(None), bool, int, float, str, bytes})
"""What cannot change, so that a copy of the dict is a copy of its values."""

_NOBODY: Final = object()


@final
class KeyedState(dict[Any, Any]):
    """One named state of one operator: a value for each key; a key without one gets the default when it is asked for.

    `state[key]`, `state.get(key)`, `del state[key]`: it is a dict. For keys whose types `==` tells apart: int, str and
    bytes, and nothing derived from them. For any others, `MixedKeyedState`.
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
        form = canonical_key(key)
        if form is not key:  # of numpy, or derived from a type that it is
            return self[form]
        if self._check is not None:  # once for every key, so it may take its time
            self._check(key)
        value = self._default if self._make is None else self._make()
        self[key] = value
        return value

    @property
    def begins_with(self) -> str:
        """The type of the default, by its name; empty where only a call would tell."""
        if self._make is None:
            return type(self._default).__name__
        return self._make.__name__ if isinstance(self._make, type) else ""

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Goes on with what a checkpoint holds, by canonical form."""
        self.update(state)

    def copy_for_checkpoint(self) -> dict[Any, Any] | list[list[Any]]:
        """What it holds now, as `stored_state` gives it; nothing of it changes when the operator goes on."""
        return stored_state(self)


@final
class MixedKeyedState(MutableMapping[Any, Any]):
    """Like `KeyedState`, for keys of all types: 1, 1.0 and True are three keys, 0.0 and -0.0 are two, NaN is one.

    Going through it gives the keys as they were; what counts as a value of Python's own, as that.
    """

    __slots__ = ("_table",)

    def __init__(self, default: Any, check: Callable[[Any], None] | None = None) -> None:
        """Args, Raises: as `KeyedState`; `check` is given the canonical form."""
        self._table = KeyedState(default, check)

    def __getitem__(self, key: Any) -> Any:
        return self._table[key if key.__class__ in PLAIN_KEYS else canonical_key(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._table[key if key.__class__ in PLAIN_KEYS else canonical_key(key)] = value

    def __delitem__(self, key: Any) -> None:
        del self._table[canonical_key(key)]

    def __contains__(self, key: object) -> bool:
        return canonical_key(key) in self._table

    def __iter__(self) -> Iterator[Any]:
        return map(original_key, self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.items())!r})"

    def get(self, key: Any, default: Any = None) -> Any:
        """Its value, or `default`; the key gets none."""
        return self._table.get(canonical_key(key), default)

    def pop(self, key: Any, default: Any = _NOBODY) -> Any:
        """Removes a key; its value, or `default`.

        Raises:
            KeyError: it has none, and no default was given.
        """
        form = canonical_key(key)
        return self._table.pop(form) if default is _NOBODY else self._table.pop(form, default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Its value, which is `default` from now on if it had none."""
        return self._table.setdefault(canonical_key(key), default)

    def items(self) -> ItemsView[Any, Any]:
        """All keys and values."""
        return _Items(self, self._table)

    @property
    def begins_with(self) -> str:
        """Like `KeyedState.begins_with`."""
        return self._table.begins_with

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Goes on with what a checkpoint holds, by canonical form."""
        self._table.update(state)

    def copy_for_checkpoint(self) -> dict[Any, Any] | list[list[Any]]:
        """What it holds now, as `stored_state` gives it; nothing of it changes when the operator goes on."""
        return stored_state(self._table)


class _Items(ItemsView[Any, Any]):
    """Goes through a table once, instead of asking for each key."""

    __slots__ = ("_table",)

    def __init__(self, state: MixedKeyedState, table: Mapping[Any, Any]) -> None:
        super().__init__(state)
        self._table = table

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return ((original_key(form), value) for form, value in self._table.items())


def stored_state(table: Mapping[Any, Any]) -> dict[Any, Any] | list[list[Any]]:
    """A state by canonical form as checkpoints keep it: copied.

    Returns:
        A dict by key where Python's `==` tells all keys apart, as all releases wrote it; else a list of [key, value].
    """
    if all(form.__class__ in PLAIN_KEYS or original_key(form) is form for form in table):
        return {key: value if value.__class__ in _FIXED else plain_copy(value) for key, value in table.items()}
    return [[original_key(form), plain_copy(value)] for form, value in table.items()]


def plain_copy(value: Any) -> Any:
    """Plain data of its own: nothing of it changes when the original does."""
    if type(value) in _FIXED:
        return value
    if isinstance(value, MixedKeyedState):
        return value.copy_for_checkpoint()
    if isinstance(value, Mapping):
        return {key: plain_copy(inner) for key, inner in value.items()}
    if type(value) is list:
        return [plain_copy(inner) for inner in value]
    if type(value) is tuple:
        return tuple(plain_copy(inner) for inner in value)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value

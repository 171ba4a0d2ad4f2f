"""Keyed state of an operator, which checkpoints store and redistribute with the key groups.

Takes: keys and values of the operator. Gives: a mapping, and copies of it for checkpoints.

Rules: a key belongs to the subtask that receives its records. So only operators whose inputs are all keyed have keyed
state, and they must use the keys of their inputs. Two keys are equal if their placement treats them as equal: the table
stores canonical forms (`canonical_key`), and returns the original keys. Values are plain data (see
`schedule.checkpoint.snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any, Final, final

from ...base.errors import ConfigError
from ...exchange.keygroups import PLAIN_KEYS, canonical_key, original_key

FIXED: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Immutable types that need no copy."""


def copied(value: Any, other: Callable[[Any], Any]) -> Any:
    """Copies dicts, lists and tuples, not their subclasses, at any depth.

    Args:
        value: any object.
        other: copies an object of any other type that is not in `FIXED`.

    Raises:
        RecursionError: the object is nested too deep.
    """
    kind = value.__class__
    if kind in FIXED:
        return value
    if kind is dict:
        return {key: inner if inner.__class__ in FIXED else copied(inner, other) for key, inner in value.items()}
    if kind is list:
        return [inner if inner.__class__ in FIXED else copied(inner, other) for inner in value]
    if kind is tuple:
        return tuple([inner if inner.__class__ in FIXED else copied(inner, other) for inner in value])
    return other(value)


NEWEST: Final = 4096
"""The most keys that a checkpoint checks: about 10 ms, and enough for an operator that uses a key of its own."""

_NO_DEFAULT: Final = object()


@final
class KeyedState(dict[Any, Any]):
    """One keyed state of an operator: a dict that gives a new key the default value.

    Its keys are of the types int, str and bytes (not of subclasses), which `==` distinguishes. `MixedKeyedState` takes
    keys of all types.

    Args:
        default: value of a new key: an immutable value, or a function that returns one, such as `list`.
        check: raises for a new key that does not belong to this subtask.

    Raises:
        ConfigError: the default is mutable, so all keys would share it.
    """

    __slots__ = ("_check", "_default", "_known", "_make")

    def __init__(self, default: Any, check: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self._make: Callable[[], Any] | None = default if callable(default) else None
        if self._make is None and type(default) not in FIXED and type(default) is not tuple:
            raise ConfigError(
                f"all keys would share the default value of type {type(default).__name__}; give a function that creates"
                f" one, such as {type(default).__name__}"
            )
        self._default = default
        self._check = check
        self._known: Any = _NO_DEFAULT

    def __missing__(self, key: Any) -> Any:
        form = canonical_key(key)
        if form is not key:  # a numpy scalar, or an instance of a subclass
            return self[form]
        if self._check is not None:  # called once per key, so it need not be fast
            self._check(key)
        value = self._default if self._make is None else self._make()
        self[key] = value
        return value

    @property
    def begins_with(self) -> str:
        """The name of the default's type; empty if only calling the function would show it."""
        if self._make is None:
            return type(self._default).__name__
        return self._make.__name__ if isinstance(self._make, type) else ""

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Loads the state of a checkpoint, keyed by canonical form."""
        self.update(state)
        self._known = next(reversed(self), _NO_DEFAULT)

    def check_new(self) -> None:
        """Checks keys that are new since the last call, since assigning a key does not; at most the newest ones."""
        if self._check is not None:
            for key in islice(reversed(self), NEWEST):
                if key is self._known:
                    break
                self._check(key)
            self._known = next(reversed(self), _NO_DEFAULT)

    def copy_for_checkpoint(self) -> dict[Any, Any] | list[list[Any]]:
        """A copy in the format of `stored_state`."""
        return stored_state(self)


@final
class MixedKeyedState(MutableMapping[Any, Any]):
    """Like `KeyedState`, for keys of all types: 1, 1.0 and True are three keys, 0.0 and -0.0 are two, NaN is one.

    Iteration returns the original keys; a numpy scalar comes back as the Python value it equals.
    """

    __slots__ = ("_table",)

    def __init__(self, default: Any, check: Callable[[Any], None] | None = None) -> None:
        """Args, Raises: as `KeyedState`; `check` receives the canonical form."""
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
        """The value of a key, or `default`, without adding the key."""
        return self._table.get(canonical_key(key), default)

    def pop(self, key: Any, default: Any = _NO_DEFAULT) -> Any:
        """Removes a key and returns its value, or `default`.

        Raises:
            KeyError: there is no such key, and no default was given.
        """
        form = canonical_key(key)
        return self._table.pop(form) if default is _NO_DEFAULT else self._table.pop(form, default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key, which is set to `default` if the key is new."""
        return self._table.setdefault(canonical_key(key), default)

    def items(self) -> ItemsView[Any, Any]:
        """All keys and values."""
        return _Items(self, self._table)

    @property
    def begins_with(self) -> str:
        """Like `KeyedState.begins_with`."""
        return self._table.begins_with

    def restore(self, state: Mapping[Any, Any]) -> None:
        """Loads the state of a checkpoint, keyed by canonical form."""
        self._table.restore(state)

    def check_new(self) -> None:
        """Like `KeyedState.check_new`."""
        self._table.check_new()

    def copy_for_checkpoint(self) -> dict[Any, Any] | list[list[Any]]:
        """A copy in the format of `stored_state`."""
        return stored_state(self._table)


class _Items(ItemsView[Any, Any]):
    """Iterates over the table once, instead of looking each key up."""

    __slots__ = ("_table",)

    def __init__(self, state: MixedKeyedState, table: Mapping[Any, Any]) -> None:
        super().__init__(state)
        self._table = table

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return ((original_key(form), value) for form, value in self._table.items())


def stored_state(table: Mapping[Any, Any]) -> dict[Any, Any] | list[list[Any]]:
    """Copies a state into the format of checkpoints.

    Args:
        table: the state, by canonical form.

    Returns:
        A dict if Python's `==` distinguishes all keys, else a list of [key, value].
    """
    if all(form.__class__ in PLAIN_KEYS or original_key(form) is form for form in table):
        return {key: value if value.__class__ in FIXED else plain_copy(value) for key, value in table.items()}
    return [[original_key(form), plain_copy(value)] for form, value in table.items()]


def plain_copy(value: Any) -> Any:
    """A deep copy of plain data. Data nested too deep to be copied are returned as they are."""
    try:
        return copied(value, _other)
    except RecursionError:
        return value


def _other(value: Any) -> Any:
    if isinstance(value, MixedKeyedState):
        return value.copy_for_checkpoint()
    if isinstance(value, Mapping):
        return copied(dict(value), _other)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value

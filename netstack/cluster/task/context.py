"""The context of an operator: its place in the job, and access to its keyed state.

Takes: the operator's name, subtask and parallelism. Gives: its keyed states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, final

from ...base.errors import ConfigError, LocalProtocolError, StateMismatch
from ...base.ids import ChannelDescriptor
from ...base.text.safe_text import safe_repr
from ...exchange.keygroups import key_group, operator_index, original_key
from ...network.handles import InputGate
from .keyed_state import KeyedState, MixedKeyedState, stored_state

_WIDER: Final = frozenset({("bool", "int"), ("bool", "float"), ("int", "float")})
"""Pairs of types where the first may be restored as the second without changing the value."""

OpenGate: TypeAlias = Callable[[Sequence[ChannelDescriptor]], Awaitable[InputGate]]


@final
class OperatorContext:
    """The context of an operator; an argument of `open`, and of functions with a parameter `context`.

    Attributes:
        operator: name of the operator, unique in the job.
        state_id: name of its state in checkpoints: its uid, or its name.
        task: name of its job vertex.
        subtask: index of the subtask, from 0.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        attempt: number of earlier attempts of the subtask.
        input: the input that the current record came from, from 1.
        checkpoint_id: the checkpoint that `snapshot` is called for; -1 for the final state.
    """

    __slots__ = (
        "_by_index",
        "_is_keyed",
        "_key_types",
        "_open_gate",
        "_restored",
        "_restored_begins",
        "_states",
        "attempt",
        "checkpoint_id",
        "input",
        "max_parallelism",
        "operator",
        "parallelism",
        "state_id",
        "subtask",
        "task",
    )

    def __init__(
        self,
        operator: str,
        task: str,
        subtask: int,
        parallelism: int,
        max_parallelism: int,
        attempt: int,
        *,
        is_keyed: bool = False,
        key_types: Collection[type] = (),
        state_id: str = "",
        open_gate: OpenGate | None = None,
        by_index: bool = True,
    ) -> None:
        """Creates the context of one subtask.

        The other parameters are described with the attributes. `is_keyed`: whether all inputs are keyed; `key_types`:
        the types of their keys, if known; `by_index`: whether the subtask's index determines its key groups, as in
        every job but an adaptive one, which distributes stored partitions by size.
        """
        self.operator = operator
        self.state_id = state_id or operator
        self.task = task
        self.subtask = subtask
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.attempt = attempt
        self.input = 1
        self.checkpoint_id = -1
        self._is_keyed = is_keyed
        self._key_types = frozenset(key_types)
        self._open_gate = open_gate
        self._by_index = by_index
        self._states: dict[str, KeyedState | MixedKeyedState] = {}
        self._restored: dict[str, Mapping[Any, Any]] = {}
        self._restored_begins: dict[str, str] = {}

    def __str__(self) -> str:
        return f"{self.operator}-{self.subtask}"

    def keyed_state(self, name: str, default: Any = None) -> MutableMapping[Any, Any]:
        """Returns a keyed state, which checkpoints store and redistribute when the parallelism changes.

        Keys are distinguished as their placement does: 1, 1.0 and True are three keys, 0.0 and -0.0 are two, NaN is
        one. The state is a plain dict, which is two to three times as fast, if all keys are known to be int, str or
        bytes: the key function is annotated (`-> str`), or there is none and the format has that type. The writer
        checks the annotated type if there are several subtasks.

        Call this in `open`. After a restart the state has the values of the last checkpoint for the keys of this
        subtask.

        Args:
            name: name of the state, unique in the operator.
            default: value of a new key: an immutable value, or a function that returns one, such as `list`.

        Raises:
            StateMismatch: the checkpoint has keys of another type, or its default value had another type.
            ConfigError: not all inputs are keyed, the name is no text, or the default is mutable. The state also raises
                it for a key whose records go to another subtask, since such a value would be lost when the parallelism
                changes; for a key that was assigned, the next checkpoint raises it.
        """
        if not isinstance(name, str):
            raise ConfigError(f"operator {self.operator!r}: a keyed state is named {safe_repr(name)}; give a text")
        if not self._is_keyed:
            raise ConfigError(
                f"operator {self.operator!r} has keyed state {name!r}, but not all of its inputs are keyed; use key_by"
                " on every input"
            )
        state = self._states.get(name)
        if state is None:
            restored = self._restored.pop(name, {})
            made = KeyedState if self._key_types else MixedKeyedState
            state = self._states[name] = made(default, partial(self._check_key, name))
            self._check_restored(name, state.begins_with, restored)
            state.restore(restored)
        return state

    async def open_gate(self, channels: Sequence[ChannelDescriptor]) -> InputGate:
        """Opens an additional gate, on partitions that other jobs kept. The caller closes it.

        Raises:
            LocalProtocolError: the operator does not run in a task.

        Other errors, and cancellation: as `NetworkEnvironment.open_gate`.
        """
        if self._open_gate is None:
            raise LocalProtocolError(f"operator {self.operator!r} does not run in a task and has no network")
        return await self._open_gate(channels)

    def _check_restored(self, state: str, begins_with: str, restored: Mapping[Any, Any]) -> None:
        what = f"operator {self.operator!r}: keyed state {state!r}"
        before = self._restored_begins.pop(state, "")
        if _differ(before, begins_with):
            raise StateMismatch(
                f"{what} has a default value of type {begins_with}, but of type {before} in the checkpoint; rename the"
                " state to start it empty"
            )
        types = {type(original_key(form)) for form in restored} if self._key_types else set()
        if not types <= self._key_types:
            raise StateMismatch(
                f"{what} has keys of type {_names(types)} in the checkpoint, but the key function or format of its"
                f" inputs now says {_names(self._key_types)}; rename the state, or remove the annotation of the key"
                " function"
            )

    def _check_key(self, state: str, form: Any) -> None:
        key = original_key(form)
        if self._key_types and type(key) not in self._key_types:
            raise ConfigError(
                f"operator {self.operator!r}: keyed state {state!r} was accessed with key {safe_repr(key)}, but"
                f" the keys of its inputs are {_names(self._key_types)}; use the keys that the function of key_by"
                " returns, and annotate it with the right type or not at all"
            )
        if not self._by_index:
            return
        owner = operator_index(key_group(key, self.max_parallelism), self.parallelism, self.max_parallelism)
        if owner != self.subtask:
            raise ConfigError(
                f"operator {self.operator!r}: keyed state {state!r} was accessed with key {safe_repr(key)}, whose"
                f" records go to subtask {owner}, not to {self.subtask}; use the keys that the function of"
                " key_by returns"
            )

    # For the runtime.

    def restore_keyed(self, states: Mapping[str, Mapping[Any, Any]], begins: Mapping[str, str] | None = None) -> None:
        """Sets the restored state; called before `open`.

        Args:
            states: the keyed states of a checkpoint for the keys of this subtask, by canonical form.
            begins: types of their default values, as far as they are known.
        """
        self._restored = dict(states)
        self._restored_begins = dict(begins or {})

    def keyed_begins(self) -> dict[str, str]:
        """The type of each keyed state's default value, as far as it is known."""
        return {**self._restored_begins, **{name: state.begins_with for name, state in self._states.items()}}

    def keyed_snapshot(self) -> dict[str, dict[Any, Any] | list[list[Any]]]:
        """Copies of all keyed states, including restored ones that the operator has not used.

        Raises:
            ConfigError: the operator has assigned a key of another subtask, whose value would be lost.
        """
        snapshot = {name: stored_state(state) for name, state in self._restored.items()}
        for name, state in self._states.items():
            if name in snapshot:
                raise LocalProtocolError(f"{self}: keyed state {name!r} was restored twice")
            state.check_new()
            snapshot[name] = state.copy_for_checkpoint()
        return snapshot


def _differ(before: str, now: str) -> bool:
    """Whether a restored default value of one type cannot be used as the other; unknown types are compatible."""
    return before != now and not {before, now} & {"", "NoneType"} and (before, now) not in _WIDER


def _names(types: Collection[type]) -> str:
    return " or ".join(sorted(each.__name__ for each in types))

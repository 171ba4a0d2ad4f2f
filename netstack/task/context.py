"""Who an operator is, and what the runtime keeps for it: what `open` is given.

Takes: the operator's place in the job. Gives: its keyed states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, final

from ..errors import ConfigError, LocalProtocolError, StateMismatch
from ..ids import ChannelDescriptor
from ..keygroups import key_group, operator_index, original_key
from ..runtime.handles import InputGate
from ..shown import shown
from .keyed_state import KeyedState, MixedKeyedState, stored_state

_WIDER: Final = frozenset({("bool", "int"), ("bool", "float"), ("int", "float")})
"""Types of numbers that stay right when they are taken for the other."""

OpenGate: TypeAlias = Callable[[Sequence[ChannelDescriptor]], Awaitable[InputGate]]


@final
class OperatorContext:
    """Who an operator is; given to `open`, and to functions with an argument `context`.

    Attributes:
        operator: its name, unique in the job.
        state_id: what its state is called in checkpoints: its uid, or its name.
        task: name of the vertex it runs in.
        subtask: which of its subtasks, from 0.
        parallelism: how many there are.
        max_parallelism: number of key groups.
        attempt: how often the subtask was started before.
        input: which of its inputs the record in hand came from, from 1.
        checkpoint_id: what `snapshot` is called for, and `checkpoint_completed` may name later; -1 is the final state.
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
        """Args: see the attributes; whether its inputs are keyed, the only types of their keys; what opens gates.

        `by_index`: whether a subtask's index says which key groups are its own. An adaptive job shares out results that
        are kept by their sizes.
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
        """A state with a value for each key, which the runtime stores and shares out anew when the parallelism changes.

        Keys are one where placement says so: 1, 1.0 and True are three, 0.0 and -0.0 two, NaN is one. It is a dict, and
        two to three times as fast, where every key is known to be an int, a str or a bytes: the key function says so
        (`-> str`), or there is none and the format does. Who says so is held to it where the records are sent, if there
        are several subtasks to choose from.

        Ask for it in `open`; after a restart it holds what the last checkpoint holds for the keys of this subtask.

        Args:
            name: unique in the operator.
            default: what a new key gets: a value that cannot change, or something to call for each, such as `list`.

        Raises:
            StateMismatch: a checkpoint has keys of another type there, or the state began with another type of value.
            ConfigError: the operator is not behind `key_by`, or the default cannot be. Later, if its inputs are no kept
                results, when a value is asked for by a key whose records come to another subtask: it would be lost when
                the parallelism changes.
        """
        if not self._is_keyed:
            raise ConfigError(
                f"operator {self.operator!r} has keyed state {name!r}, and not all of its inputs are keyed: put key_by"
                " in front of it"
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
        """A gate beside those of the job's edges, on partitions that other jobs have left. Its reader closes it.

        Raises:
            LocalProtocolError: the operator is not in a task.

        Others, and cancellation: as `NetworkEnvironment.open_gate`.
        """
        if self._open_gate is None:
            raise LocalProtocolError(f"operator {self.operator!r} is not in a task, and has no network")
        return await self._open_gate(channels)

    def _check_restored(self, state: str, begins_with: str, restored: Mapping[Any, Any]) -> None:
        what = f"operator {self.operator!r}: keyed state {state!r}"
        before = self._restored_begins.pop(state, "")
        if _differ(before, begins_with):
            raise StateMismatch(
                f"{what} begins with a value of type {begins_with}, and in the checkpoint with one of type {before}:"
                " give the state another name, and it begins empty"
            )
        types = {type(original_key(form)) for form in restored} if self._key_types else set()
        if not types <= self._key_types:
            raise StateMismatch(
                f"{what} has keys of type {_names(types)} in the checkpoint, and those of its inputs are"
                f" {_names(self._key_types)} now, by their key function or format: give the state another name, or let"
                " the function say nothing"
            )

    def _check_key(self, state: str, form: Any) -> None:
        key = original_key(form)
        if self._key_types and type(key) not in self._key_types:
            raise ConfigError(
                f"operator {self.operator!r}: keyed state {state!r} is asked for key {shown(key)}, and keys of its"
                f" inputs are {_names(self._key_types)}: use what the function of key_by gives, and let it say what it"
                " gives, or nothing"
            )
        if not self._by_index:
            return
        owner = operator_index(key_group(key, self.max_parallelism), self.parallelism, self.max_parallelism)
        if owner != self.subtask:
            raise ConfigError(
                f"operator {self.operator!r}: keyed state {state!r} is asked for key {shown(key)}, and the records of"
                f" this key come to subtask {owner}, not to {self.subtask}: use what the function of key_by gives"
            )

    # For the runtime.

    def restore_keyed(self, states: Mapping[str, Mapping[Any, Any]], begins: Mapping[str, str] | None = None) -> None:
        """Called before `open`.

        Args:
            states: what a checkpoint holds for the keys of this subtask, by canonical form.
            begins: with which type of value each began, as far as it is known.
        """
        self._restored = dict(states)
        self._restored_begins = dict(begins or {})

    def keyed_begins(self) -> dict[str, str]:
        """With which type of value each keyed state begins, as far as it is known."""
        return {**self._restored_begins, **{name: state.begins_with for name, state in self._states.items()}}

    def keyed_snapshot(self) -> dict[str, dict[Any, Any] | list[list[Any]]]:
        """All keyed states, copied; what was restored and not asked for stays as it was."""
        snapshot = {name: stored_state(state) for name, state in self._restored.items()}
        for name, state in self._states.items():
            if name in snapshot:
                raise LocalProtocolError(f"{self}: keyed state {name!r} was restored twice")
            snapshot[name] = state.copy_for_checkpoint()
        return snapshot


def _differ(before: str, now: str) -> bool:
    """Whether values that began as one type are no good where another one is expected; what is not known may be."""
    return before != now and not {before, now} & {"", "NoneType"} and (before, now) not in _WIDER


def _names(types: Collection[type]) -> str:
    return " or ".join(sorted(each.__name__ for each in types))

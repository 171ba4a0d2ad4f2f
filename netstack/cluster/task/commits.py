"""Two-phase commit of an operator: stores prepared commits until their checkpoint is complete.

Takes: the results of `prepare_commit`. Gives: lists of them to `commit`, once the checkpoint is complete.

Rules: checkpoints store the prepared commits, and a restart commits them again, so `commit` must be idempotent. The
commits of an aborted checkpoint are committed with the next one.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, final

from ...base.errors import StateMismatch
from .keyed_state import plain_copy

AT_THE_END: Final = 0
"""Stands for a checkpoint id in a job without checkpoints, which commits when none of its tasks can run again."""


class Methods(Protocol):
    """The methods of an operator."""

    name: str

    def has(self, method: str) -> bool:
        """Whether it has a method of this name."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method. Returns None if there is none."""


@final
class Commits:
    """The prepared commits of one operator; always empty if it has no `prepare_commit`."""

    __slots__ = ("_bound", "_prepared")

    def __init__(self, bound: Methods) -> None:
        self._bound = bound
        self._prepared: list[tuple[int, Any]] = []

    async def prepare(self, checkpoint_id: int) -> None:
        """Calls `prepare_commit` for a checkpoint. Raises as that method does."""
        if self._bound.has("prepare_commit"):
            prepared = await self._bound.call("prepare_commit")
            if prepared is not None:
                self._prepared.append((checkpoint_id, plain_copy(prepared)))

    def snapshot(self) -> list[Any]:
        """The prepared commits, to be stored in a checkpoint."""
        return [prepared for _, prepared in self._prepared]

    async def complete(self, checkpoint_id: int) -> None:
        """Commits everything that was prepared up to a complete checkpoint. Raises as the operator's `commit`."""
        due = [prepared for number, prepared in self._prepared if number <= checkpoint_id]
        if due:
            await self._bound.call("commit", due)
            self._prepared = [(number, prepared) for number, prepared in self._prepared if number > checkpoint_id]

    async def restore(self, prepared: list[Any]) -> None:
        """Commits the prepared commits of a restored checkpoint, which may have been committed before.

        Raises:
            StateMismatch: the operator has no method `commit`. Others as the operator's `commit`.
        """
        if not prepared:
            return
        if not self._bound.has("commit"):
            raise StateMismatch(
                f"operator {self._bound.name!r} has {len(prepared)} prepared commits in the checkpoint, but no method"
                " commit; add the method, or start from another checkpoint"
            )
        await self._bound.call("commit", prepared)

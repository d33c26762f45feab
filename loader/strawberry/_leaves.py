"""Whether scalars and enums can go into a response as they are: one that cannot is an error, and may make more null."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from graphql import GraphQLBoolean, GraphQLFloat, GraphQLID, GraphQLInt, GraphQLString

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from graphql import GraphQLLeafType


def _ends(values: Sequence[Any]) -> tuple[Any, Any]:
    return min(values), max(values)


TELLING: dict[tuple[Any, type], Callable[[Sequence[Any]], Iterable[Any]]] = {
    (GraphQLInt, int): _ends,  # too large if one is
    (GraphQLInt, bool): lambda _: (),
    (GraphQLFloat, float): lambda values: (sum(values),),  # no finite number, if one of them is none
    (GraphQLString, str): lambda _: (),
    (GraphQLID, str): lambda _: (),
    (GraphQLID, int): _ends,
    (GraphQLBoolean, bool): lambda _: (),
}
"""Which values, of all that are of one Python type, stand for them. To try each costs a twentieth of a request."""


class Leaf:
    """A scalar or an enum.

    Attributes:
        complete: What the executor does with a value of it.
    """

    __slots__ = ("_type", "complete")

    def __init__(self, leaf_type: GraphQLLeafType, complete: Callable[[GraphQLLeafType, Any], Any]) -> None:
        self._type = leaf_type
        self.complete = partial(complete, leaf_type)

    def check(self, values: Sequence[Any], kinds: set[type]) -> None:
        """Make sure that values of these Python types can go into a response.

        Raises:
            Exception: What a field with the value would raise.
        """
        if len(kinds) == 1:
            [kind] = kinds
            telling = TELLING.get((self._type, kind))
            if telling is not None:
                values = [*telling(values)]
        for value in {id(value): value for value in values}.values():  # each member of an enum once
            self.complete(value)

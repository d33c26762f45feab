"""Where the plan takes a batch more, or less, than resolvers do: it is luck, and what it comes to is written down.

The plan asks when resolvers would ask, but where they are answered before they listen. What they load for an object of
a list in a list they await in a task of a task, which starts two turns of the loop later. Where the answer comes in
those turns, the plan goes on a turn or two sooner or later than they do. To know when they would, it would have to go
through the tasks of every object, which is what it saves.

Whether that turn meets the batch of another list is luck. A batch waits for nothing but the program: neither for a
backend nor for a timer. When it leaves, nobody knows whether another key comes in the next turn, in an hour or never,
and however many quiet turns it waits for, there is a query that comes a turn too late. Where a batch is answered key by
key, it is luck, too, which key comes first, and so who waits longest.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import strawberry

from loader import Loaders, Settle, dataloader
from loader.strawberry import relation
from tests.answers import Answer, Log, ask, schemas
from tests.fakes import turns

QUERY = """{ early { wing { id } } late { friends { room { door { id } } wing { door { id } } } }
    last { door { lock { id } } } }"""


async def counts(rule: Settle, wings: int, late: int, last: int) -> tuple[int, int]:
    """How many batches of doors the query takes, with the plan and without."""
    planned, plain = await answers(rule, wings, late, last)
    return planned.log.count, plain.log.count


async def answers(rule: Settle, wings: int, late: int, last: int, *, one_by_one: bool = False) -> tuple[Answer, Answer]:
    """The answers with the plan and without.

    Args:
        rule: When batches leave.
        wings: How many turns the loop takes to answer wings.
        late: After how many turns the second list comes.
        last: After how many the third one does.
        one_by_one: Whether doors come one after the other, each after a second, or all after one.
    """

    class App(Loaders):
        def __init__(self) -> None:
            self.log = Log()

        @dataloader(window=rule)
        async def rooms(self, ids: list[int]) -> list[Any]:
            await turns(4)
            return [Room(id=key) for key in ids]

        @dataloader(window=rule)
        async def wings(self, ids: list[int]) -> list[Any]:
            await turns(wings)
            return [Room(id=key) for key in ids]

        @dataloader(window=rule)
        async def doors(self, ids: list[int]) -> list[Any]:
            self.log.batches.append(("doors", ids))
            await asyncio.sleep(1)
            return [Door(id=key) for key in ids]

        @dataloader(window=rule)
        async def doors_one_by_one(self, ids: list[int]) -> AsyncIterator[tuple[int, Any]]:
            self.log.batches.append(("doors", ids))
            for key in ids:
                await asyncio.sleep(1)
                yield key, Door(id=key)

        @dataloader
        async def locks(self, ids: list[int]) -> list[Any]:
            await asyncio.sleep(3)
            return [Lock(id=key) for key in ids]

    @strawberry.type
    class Lock:
        id: int

    @strawberry.type
    class Door:
        id: int
        lock: Lock = relation(App.locks, "id")

    @strawberry.type
    class Room:
        id: int
        door: Door = relation(App.doors_one_by_one if one_by_one else App.doors, "id")

    @strawberry.type
    class Guest:
        id: int
        room: Room = relation(App.rooms, "id")
        wing: Room = relation(App.wings, "id")

    @strawberry.type
    class Party:
        friends: list[Guest]

    def guests() -> list[Guest]:
        return [Guest(id=1), Guest(id=2)]

    @strawberry.type
    class Query:
        @strawberry.field
        def early(self) -> list[Guest]:
            return guests()

        @strawberry.field
        async def late(self) -> list[Party]:
            await turns(late)
            return [Party(friends=guests()), Party(friends=guests())]

        @strawberry.field
        async def last(self) -> list[Room]:
            await turns(last)
            return [Room(id=3), Room(id=4)]

    planned, plain = [await _answer(schema, App()) for schema in schemas(Query, App)]
    assert planned.data == plain.data
    assert planned.errors == plain.errors == []
    return planned, plain


async def _answer(schema: strawberry.Schema, loaders: Loaders) -> Answer:
    return await ask(schema, QUERY, loaders)


PATIENT = Settle(turns=40, max_turns=2000)


@pytest.mark.parametrize("quiet", [1, 2, 4, 8])
async def test_a_turn_sooner_or_later_may_miss_a_batch_that_resolvers_meet(quiet: int) -> None:
    lists = {"wings": 2, "late": quiet + 2, "last": 2 * quiet + 6}
    planned, plain = await counts(Settle(turns=quiet), **lists)
    assert planned == plain + 1
    # The resolvers were lucky: the plan takes what the query takes for sure, where no turn matters.
    assert await counts(PATIENT, **lists) == (planned, planned)


@pytest.mark.parametrize(("quiet", "wings", "late", "last"), [(1, 0, 0, 6), (2, 0, 1, 8)])
async def test_a_turn_sooner_or_later_may_meet_a_batch_that_resolvers_miss(
    quiet: int, wings: int, late: int, last: int
) -> None:
    planned, plain = await counts(Settle(turns=quiet), wings, late, last)
    assert planned == plain - 1


@pytest.mark.parametrize("quiet", [2, 4, 8])
@pytest.mark.parametrize(("wings", "last", "planned_comes_first"), [(4, 5, True), (2, 4, False)])
async def test_a_turn_sooner_or_later_says_whose_key_is_answered_first(
    quiet: int, wings: int, last: int, planned_comes_first: bool
) -> None:
    both = await answers(Settle(turns=quiet), wings, quiet + 2, quiet + last, one_by_one=True)
    quick, slow = both if planned_comes_first else reversed(both)
    # What is asked below the last list takes longest. Neither way knows that: each asks in the order of its turns.
    assert (quick.log.batches, quick.took) == ([("doors", [3, 4, 1, 2])], 5)
    assert (slow.log.batches, slow.took) == ([("doors", [1, 2, 3, 4])], 7)

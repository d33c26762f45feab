"""What Strawberry's guide to DataLoaders shows runs the same with its DataLoader and with ours.

Each test is one program of that guide, rewritten around what it shows; the class is all that changes between the two
runs. At the end stand the differences that docs/migration.md names.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import strawberry
from strawberry.asgi import GraphQL
from strawberry.dataloader import AbstractCache
from strawberry.dataloader import DataLoader as StrawberryDataLoader
from strawberry.exceptions import WrongNumberOfResultsReturned

from loader import BatchResultError, DataLoader


@pytest.fixture(params=[StrawberryDataLoader, DataLoader], ids=["strawberry", "ours"])
def loader_class(request: pytest.FixtureRequest) -> Any:
    return request.param


@strawberry.type
class User:
    id: strawberry.ID


@strawberry.type
class Query:
    @strawberry.field
    async def get_user(
        self,
        info: strawberry.Info[dict[str, Any]],
        id: strawberry.ID,  # noqa: A002  # the argument's name in the schema
    ) -> User:
        user: User = await info.context["users"].load(id)
        return user


class Backend:
    """Users by id; `batches` has the keys of each call."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def load_users(self, keys: list[Any]) -> list[User]:
        self.batches.append(list(keys))
        return [User(id=key) for key in keys]


@pytest.fixture
def backend() -> Backend:
    return Backend()


async def post(app: Any, query: str) -> Any:
    """The response to one request over ASGI."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        response = await client.post("/graphql", json={"query": query})
    return response.json()


# Basic usage


@pytest.mark.every_loop
async def test_one_load_is_one_call_with_one_key(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    user = await users.load(1)
    assert user.id == 1
    assert backend.batches == [[1]]


@pytest.mark.every_loop
async def test_loads_that_are_gathered_make_one_call(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    [first, second] = await asyncio.gather(users.load(1), users.load(2))
    assert (first.id, second.id) == (1, 2)
    assert backend.batches == [[1, 2]]


async def test_a_second_load_is_answered_by_the_cache(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    assert await users.load(1) is await users.load(1)
    assert backend.batches == [[1]]


@pytest.mark.every_loop
async def test_load_many_is_one_call_and_keeps_the_order(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    loaded = await users.load_many([3, 1, 2])
    assert [user.id for user in loaded] == [3, 1, 2]
    assert backend.batches == [[3, 1, 2]]


async def test_the_batch_function_may_be_the_only_positional_argument(loader_class: Any, backend: Backend) -> None:
    users = loader_class(backend.load_users, max_batch_size=2)
    await users.load_many([1, 2, 3])
    assert backend.batches == [[1, 2], [3]]


# Errors


async def test_an_exception_in_the_results_fails_its_own_key(loader_class: Any) -> None:
    stored = {1: "Ada", 2: "Grace"}

    async def load_names(keys: list[int]) -> list[str | ValueError]:
        return [stored.get(key) or ValueError(f"nobody has the number {key}") for key in keys]

    names = loader_class(load_fn=load_names)
    answers = await asyncio.gather(names.load(1), names.load(3), return_exceptions=True)
    assert answers[0] == "Ada"
    assert isinstance(answers[1], ValueError)
    with pytest.raises(ValueError, match="nobody has the number 3"):
        await names.load(3)
    with pytest.raises(ValueError, match="nobody has the number 3"):
        await names.load_many([1, 2, 3])


async def test_an_exception_that_is_raised_fails_every_key_of_the_batch(loader_class: Any) -> None:
    async def load_names(keys: list[int]) -> list[str]:
        raise ConnectionError("the database is away")

    names = loader_class(load_fn=load_names)
    answers = await asyncio.gather(names.load(1), names.load(2), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["the database is away"] * 2
    assert all(isinstance(answer, ConnectionError) for answer in answers)


# Overriding the cache key


class Person:
    """A key that is equal to no other object but itself."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name


@dataclass
class Point:
    """A key that cannot be hashed."""

    x: int
    y: int


async def test_objects_with_the_same_cache_key_are_one_key(loader_class: Any) -> None:
    batches: list[list[str]] = []

    async def echo(keys: list[Person]) -> list[Person]:
        batches.append([key.name for key in keys])
        return list(keys)

    people = loader_class(load_fn=echo, cache_key_fn=lambda person: person.number)
    first = await people.load(Person(1, "Ada"))
    assert await people.load(Person(1, "Ada again")) is first
    both = await people.load_many([Person(2, "Grace"), Person(2, "Grace again")])
    assert both[0] is both[1]
    assert batches == [["Ada"], ["Grace"]]


async def test_keys_that_cannot_be_hashed_load_with_a_cache_key(loader_class: Any) -> None:
    batches: list[list[Point]] = []

    async def add(keys: list[Point]) -> list[int]:
        batches.append(list(keys))
        return [point.x + point.y for point in keys]

    sums = loader_class(load_fn=add, cache_key_fn=lambda point: (point.x, point.y))
    assert await sums.load_many([Point(1, 2), Point(3, 4), Point(1, 2)]) == [3, 7, 3]
    assert await sums.load(Point(3, 4)) == 7
    sums.clear(Point(1, 2))
    assert await sums.load(Point(1, 2)) == 3
    assert batches == [[Point(1, 2), Point(3, 4)], [Point(1, 2)]]


# Cache invalidation


async def test_clear_forgets_one_key(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    await users.load_many([1, 2])
    users.clear(1)
    await users.load_many([1, 2])
    assert backend.batches == [[1, 2], [1]]


async def test_clear_many_forgets_the_keys_it_is_given(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    await users.load_many([1, 2, 3])
    users.clear_many([1, 3])
    await users.load_many([1, 2, 3])
    assert backend.batches == [[1, 2, 3], [1, 3]]


async def test_clear_all_forgets_everything(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    await users.load_many([1, 2])
    users.clear_all()
    await users.load_many([1, 2])
    assert backend.batches == [[1, 2], [1, 2]]


# Importing data into the cache


@strawberry.type
class Member:
    id: strawberry.ID
    friend_ids: strawberry.Private[list[str]]

    @strawberry.field
    async def friends(self, info: strawberry.Info[dict[str, Any]]) -> list["Member"]:
        friends: list[Member] = await info.context["members"].load_many(self.friend_ids)
        return friends


@strawberry.type
class Club:
    @strawberry.field
    async def get_all_members(self, info: strawberry.Info[dict[str, Any]]) -> list[Member]:
        members = [
            Member(id=strawberry.ID("1"), friend_ids=["2", "3"]),
            Member(id=strawberry.ID("2"), friend_ids=["1"]),
            Member(id=strawberry.ID("3"), friend_ids=[]),
        ]
        info.context["members"].prime_many({member.id: member for member in members})
        return members


async def test_what_a_resolver_primes_is_not_asked_for_again(loader_class: Any, backend: Backend) -> None:
    schema = strawberry.Schema(Club)
    result = await schema.execute(
        "{ getAllMembers { id friends { id } } }",
        context_value={"members": loader_class(load_fn=backend.load_users)},
    )
    assert result.errors is None
    assert result.data == {
        "getAllMembers": [
            {"id": "1", "friends": [{"id": "2"}, {"id": "3"}]},
            {"id": "2", "friends": [{"id": "1"}]},
            {"id": "3", "friends": []},
        ]
    }
    assert backend.batches == []


async def test_prime_keeps_what_is_cached_unless_it_is_forced(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    first, second, third = (User(id=strawberry.ID(name)) for name in ("first", "second", "third"))
    users.prime(1, first)
    users.prime(1, second)
    assert await users.load(1) is first
    users.prime_many({1: second, 2: second}, force=True)
    assert await users.load_many([1, 2]) == [second, second]
    users.prime(1, third, force=True)
    assert await users.load(1) is third
    assert backend.batches == []


async def test_priming_a_key_that_waits_takes_it_out_of_the_batch(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    waiting = asyncio.gather(users.load(1), users.load(2))
    primed = User(id=strawberry.ID("primed"))
    users.prime(1, primed)
    [first, second] = await waiting
    assert first is primed
    assert second.id == 2
    assert backend.batches == [[2]]


# Custom cache


class UserCache(AbstractCache[Any, Any]):
    """The guide's cache: it keeps what it is given."""

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        return self.entries.get(key)

    def set(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def delete(self, key: Any) -> None:
        del self.entries[key]

    def clear(self) -> None:
        self.entries.clear()


class StoredCache(UserCache):
    """A cache as people write it in front of a store: plain values inside, futures at the surface."""

    def get(self, key: Any) -> Any:
        if key not in self.entries:
            return None
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.entries[key])
        return future

    def set(self, key: Any, value: Any) -> None:
        def store(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                self.entries[key] = future.result()

        if value.done():
            store(value)
        else:
            value.add_done_callback(store)


@pytest.mark.parametrize("cache_class", [UserCache, StoredCache])
async def test_a_custom_cache_answers_and_forgets(
    loader_class: Any, backend: Backend, cache_class: type[UserCache]
) -> None:
    cache = cache_class()
    users = loader_class(load_fn=backend.load_users, cache_map=cache)
    await users.load_many([1, 2, 3])
    await users.load_many([1, 2, 3])
    assert backend.batches == [[1, 2, 3]]
    assert set(cache.entries) == {1, 2, 3}

    users.clear(1)
    users.clear_many([2])
    assert set(cache.entries) == {3}
    users.clear_all()
    assert not cache.entries
    users.prime(4, User(id=strawberry.ID("4")))
    assert (await users.load(4)).id == "4"
    assert backend.batches == [[1, 2, 3]]


@pytest.mark.parametrize("cache_class", [UserCache, StoredCache])
async def test_a_custom_cache_outlives_the_loader(
    loader_class: Any, backend: Backend, cache_class: type[UserCache]
) -> None:
    cache = cache_class()
    first = await loader_class(load_fn=backend.load_users, cache_map=cache).load(1)
    assert await loader_class(load_fn=backend.load_users, cache_map=cache).load(1) is first
    assert backend.batches == [[1]]


async def test_a_custom_cache_serves_requests_over_http(loader_class: Any, backend: Backend) -> None:
    cache = UserCache()

    class App(GraphQL[Any, Any]):
        async def get_context(self, request: Any, response: Any) -> Any:
            return {"users": loader_class(load_fn=backend.load_users, cache_map=cache)}

    app = App(strawberry.Schema(Query))
    assert await post(app, "{ getUser(id: 1) { id } }") == {"data": {"getUser": {"id": "1"}}}
    assert await post(app, "{ getUser(id: 1) { id } }") == {"data": {"getUser": {"id": "1"}}}
    assert backend.batches == [["1"]]


# Usage with GraphQL, and with context


async def test_one_loader_outside_the_resolvers_batches_the_fields_of_a_query(
    loader_class: Any, backend: Backend
) -> None:
    users = loader_class(load_fn=backend.load_users)

    @strawberry.type
    class Root:
        @strawberry.field
        async def get_user(self, id: strawberry.ID) -> User:  # noqa: A002  # its name in the schema
            user: User = await users.load(id)
            return user

    result = await strawberry.Schema(Root).execute("{ first: getUser(id: 1) { id } second: getUser(id: 2) { id } }")
    assert result.errors is None
    assert result.data == {"first": {"id": "1"}, "second": {"id": "2"}}
    assert backend.batches == [["1", "2"]]


async def test_a_loader_of_the_context_lives_for_one_request(loader_class: Any, backend: Backend) -> None:
    class App(GraphQL[Any, Any]):
        async def get_context(self, request: Any, response: Any) -> Any:
            return {"users": loader_class(load_fn=backend.load_users)}

    app = App(strawberry.Schema(Query))
    query = "{ first: getUser(id: 1) { id } again: getUser(id: 1) { id } second: getUser(id: 2) { id } }"
    for _ in range(2):
        assert await post(app, query) == {"data": {"first": {"id": "1"}, "again": {"id": "1"}, "second": {"id": "2"}}}
    assert backend.batches == [["1", "2"], ["1", "2"]]


# Where they differ on purpose


def is_ours(loader_class: Any) -> bool:
    return loader_class is DataLoader


async def test_only_ours_asks_again_after_a_failed_batch(loader_class: Any) -> None:
    batches: list[list[int]] = []

    async def fail_once(keys: list[int]) -> list[int]:
        batches.append(list(keys))
        if len(batches) == 1:
            raise ConnectionError
        return keys

    numbers = loader_class(load_fn=fail_once)
    with pytest.raises(ConnectionError):
        await numbers.load(1)
    if is_ours(loader_class):
        assert await numbers.load(1) == 1
        assert batches == [[1], [1]]
    else:
        with pytest.raises(ConnectionError):
            await numbers.load(1)
        assert batches == [[1]]


async def test_only_ours_leaves_the_other_caller_waiting_when_one_is_cancelled(
    loader_class: Any, backend: Backend
) -> None:
    users = loader_class(load_fn=backend.load_users)
    impatient, patient = users.load(1), users.load(1)
    impatient.cancel()
    if is_ours(loader_class):
        assert (await patient).id == 1
    else:
        with pytest.raises(asyncio.CancelledError):
            await patient
        # Its dispatch task looks again and finds nobody; let it end.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_only_ours_asks_once_for_a_key_that_waits_while_nothing_is_cached(
    loader_class: Any, backend: Backend
) -> None:
    users = loader_class(load_fn=backend.load_users, cache=False)
    await asyncio.gather(users.load(1), users.load(1))
    assert backend.batches == ([[1]] if is_ours(loader_class) else [[1, 1]])


async def test_only_ours_does_not_mind_clearing_an_unknown_key(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    if is_ours(loader_class):
        users.clear(1)
    else:
        with pytest.raises(KeyError):
            users.clear(1)


async def test_only_ours_raises_an_exception_that_was_primed(loader_class: Any, backend: Backend) -> None:
    users = loader_class(load_fn=backend.load_users)
    error = LookupError("nobody")
    users.prime(1, error)
    if is_ours(loader_class):
        with pytest.raises(LookupError):
            await users.load(1)
    else:
        assert await users.load(1) is error


async def test_only_ours_gives_a_custom_cache_the_key_of_cache_key_fn(loader_class: Any, backend: Backend) -> None:
    cache = UserCache()
    users = loader_class(load_fn=backend.load_users, cache_map=cache, cache_key_fn=lambda key: f"user {key}")
    await users.load_many([1, 2])
    assert set(cache.entries) == ({"user 1", "user 2"} if is_ours(loader_class) else {1, 2})


async def test_only_ours_looks_a_mapping_up_by_key(loader_class: Any) -> None:
    async def load_names(keys: list[int]) -> dict[int, str]:
        return {2: "Grace", 1: "Ada"}

    names = await loader_class(load_fn=load_names).load_many([1, 2])
    assert names == (["Ada", "Grace"] if is_ours(loader_class) else [2, 1])


async def test_a_wrong_number_of_values_has_another_error(loader_class: Any) -> None:
    async def load_nothing(keys: list[int]) -> list[int]:
        return []

    error = BatchResultError if is_ours(loader_class) else WrongNumberOfResultsReturned
    with pytest.raises(error):
        await loader_class(load_fn=load_nothing).load(1)


async def test_only_ours_runs_the_batch_in_the_context_where_the_loader_was_made(loader_class: Any) -> None:
    caller: ContextVar[str] = ContextVar("caller", default="nobody")
    seen: list[str] = []

    async def load_numbers(keys: list[int]) -> list[int]:
        seen.append(caller.get())
        return keys

    numbers = loader_class(load_fn=load_numbers)

    async def resolve(name: str, key: int) -> None:
        caller.set(name)
        await numbers.load(key)

    await asyncio.gather(resolve("first", 1), resolve("second", 2))
    assert seen == (["nobody"] if is_ours(loader_class) else ["first"])

"""`record_batches` has the batches of a test, whatever runs them, and says what happened where they are not right."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import strawberry
import uvicorn

from loader import Batcher, DataLoader, LoaderError, Loaders, Scope, _hooks, dataloader
from loader.strawberry import install, relation
from loader.strawberry.asgi import GraphQL
from loader.testing import AmbiguousNameError, Batches, NoBatchError, record_batches
from tests.fakes import Backend, awaits, together, turns

if TYPE_CHECKING:
    from collections.abc import Callable


class AppLoaders(Loaders):
    @dataloader
    async def users(self, ids: list[int]) -> list[str]:
        return [f"user {key}" for key in ids]

    @dataloader
    async def posts(self, ids: list[int], *, first: int = 3) -> list[list[int]]:
        return [list(range(first)) for _ in ids]


class Admin(Loaders):
    @dataloader
    async def users(self, ids: list[int]) -> list[str]:
        return [f"admin {key}" for key in ids]


@strawberry.type
class Book:
    author_id: strawberry.Private[int]
    author: str = relation(AppLoaders.users, "author_id")
    posts: list[int] = relation(AppLoaders.posts, "author_id")


@strawberry.type
class Query:
    @strawberry.field
    def books(self) -> list[Book]:
        return [Book(author_id=key) for key in (1, 2, 1)]

    @strawberry.field
    async def one_by_one(self, info: strawberry.Info[Any]) -> list[str]:
        names = []
        for key in (7, 8, 9):
            names.append(await info.context["loaders"].users.load(key))  # THE LOOP
        return names


schema = strawberry.Schema(Query)
install(schema, loaders=AppLoaders)
app: GraphQL[Any] = GraphQL(schema, lambda _: AppLoaders())

BOOKS = "{ books { author posts(first: 2) } }"
OF_BOOKS = {"users": [[1, 2]], "posts(first=2)": [[1, 2]]}
IN_A_LOOP = "{ oneByOne }"


def executed(query: str) -> Any:
    result = asyncio.run(schema.execute(query, context_value={"loaders": AppLoaders()}))
    return {"data": result.data}


def through_httpx(query: str) -> Any:
    async def ask() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.post("/graphql", json={"query": query})).json()

    return asyncio.run(ask())


def through_starlette(query: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer releases would rather have the successor of httpx
        from starlette.testclient import TestClient
    return TestClient(app).post("/graphql", json={"query": query}).json()


def through_uvicorn(query: str) -> Any:
    """As a user would: a server in a thread of the test's process, and a client that blocks."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/graphql"
            return httpx.post(url, json={"query": query}, trust_env=False, timeout=10).json()
        finally:
            server.should_exit = True
            thread.join(10)


WAYS = pytest.mark.parametrize("ask", [executed, through_httpx, through_starlette, through_uvicorn])


@WAYS
def test_whatever_runs_the_query_its_batches_are_recorded(ask: Callable[[str], Any]) -> None:
    with record_batches() as batches:
        answer = ask(BOOKS)
    assert [book["author"] for book in answer["data"]["books"]] == ["user 1", "user 2", "user 1"]
    assert batches == OF_BOOKS
    batches.assert_batches(users=1, posts=1)


@WAYS
def test_loads_awaited_in_a_loop_give_one_hint_with_their_place_in_the_failure(ask: Callable[[str], Any]) -> None:
    source, first = inspect.getsourcelines(Query)
    (line,) = [first + number for number, text in enumerate(source) if "THE LOOP" in text]
    with record_batches() as batches:
        ask(IN_A_LOOP)
    with pytest.raises(AssertionError) as caught:
        batches.assert_batches(users=1)
    (hint,) = [text for text in str(caught.value).splitlines() if text.startswith("hint: ")]
    assert hint.startswith(f"hint: {__file__}:{line} in Query.one_by_one: AppLoaders.users sent 3 batches of one key")


async def test_names_are_as_short_as_they_can_be_and_longer_ones_are_understood_too() -> None:
    with record_batches() as batches:
        async with AppLoaders() as loaders:
            await together(loaders.users.load_many([1, 2]), loaders.posts(first=5).load(1), loaders.posts.load(2))
            await loaders.users.load(3)
    assert batches == {"users": [[1, 2], [3]], "posts(first=5)": [[1]], "posts(first=3)": [[2]]}
    assert list(batches) == ["users", "posts(first=5)", "posts(first=3)"]
    assert batches["users"] == batches["AppLoaders.users"] == [[1, 2], [3]]
    assert batches["posts"] == batches["AppLoaders.posts"] == [[1], [2]]
    assert batches["posts(first=5)"] == batches["AppLoaders.posts(first=5)"] == [[1]]
    batches.assert_batches({"posts(first=5)": 1, "AppLoaders.posts(first=3)": 1}, users=2)


async def test_a_parameter_with_a_dot_or_a_bracket_is_no_part_of_the_name() -> None:
    class Odd(Loaders):
        @dataloader
        async def near(self, ids: list[int], *, at: str) -> list[int]:
            return ids

    with record_batches() as batches:
        async with Odd() as loaders:
            await loaders.near(at="(1.5)").load(1)
    assert batches == {"near(at='(1.5)')": [[1]]}
    assert batches["near"] == batches["near(at='(1.5)')"] == [[1]]


async def test_two_loaders_of_one_name_share_an_entry_and_a_test_may_change_it() -> None:
    with record_batches() as batches:
        for _ in range(2):
            async with Scope():
                await AppLoaders().users.load(1)
    assert batches["users"] == [[1], [1]]
    batches["users"][0].append(2)
    batches["users"].clear()
    assert batches["users"] == [[1], [1]]


async def test_loaders_of_two_classes_need_their_classes_names() -> None:
    with record_batches() as batches:
        async with AppLoaders() as loaders, Admin() as admin:
            await loaders.users.load(1)
            await admin.users.load(2)
            await loaders.posts.load(3)
    assert batches == {"AppLoaders.users": [[1]], "Admin.users": [[2]], "posts(first=3)": [[3]]}
    for ask in (
        lambda: batches["users"],
        lambda: batches.get("users"),
        lambda: "users" in batches,
        lambda: batches.assert_batches(users=2),
    ):
        with pytest.raises(AmbiguousNameError, match=r"'users' is .* several loaders: AppLoaders.users, Admin.users"):
            ask()
    batches.assert_batches({"Admin.users": 1, "AppLoaders.users": 1}, posts=1)


async def test_a_whole_name_goes_before_a_part_of_another() -> None:
    with record_batches() as batches:
        async with AppLoaders() as loaders:
            await loaders.users.load(1)
            await DataLoader(Backend(), name="users").load(2)
    assert batches["users"] == [[2]]
    assert batches == {"AppLoaders.users": [[1]], "users": [[2]]}


async def test_every_entry_of_the_mapping_is_found_under_its_name_and_has_its_own_batches() -> None:
    names = ["a", "b.a", "a(x=1)", "b.a(x=1)", "c", "b.d(x=1)", "d", "e.f(x=1)", "e.f(x=2)"]
    with record_batches() as batches:
        for key, name in enumerate(names):
            await DataLoader(Backend(), name=name).load(key)
    assert len(batches) == len(names)
    assert list(batches.values()) == [[[key]] for key in range(len(names))]
    assert list(batches)[-2:] == ["f(x=1)", "f(x=2)"]


async def test_a_name_of_which_no_batch_was_sent_is_an_error_that_tells_the_others() -> None:
    with record_batches() as batches:
        with pytest.raises(NoBatchError, match=r"^no batch of 'usres' was sent, nor any other$"):
            batches["usres"]
        async with AppLoaders() as loaders:
            await loaders.users.load_many([1, 2])
            await together(loaders.users.load(3), loaders.posts.load(1))
    with pytest.raises(
        NoBatchError, match=r"^no batch of 'usres' was sent, but those of users \(2\), posts\(first=3\)"
    ):
        batches["usres"]
    assert "usres" not in batches
    assert "users" in batches
    assert batches.get("usres", []) == []
    assert issubclass(NoBatchError, KeyError)
    assert issubclass(NoBatchError, LoaderError)


async def test_batches_stand_in_the_order_in_which_they_were_sent_not_in_that_of_their_first_keys() -> None:
    slow, quick = DataLoader(Backend(), name="it", window=2), DataLoader(Backend(), name="it", window=1)
    with record_batches() as batches:
        await together(slow.load("first asked"), quick.load("second asked"))
    assert batches["it"] == [["second asked"], ["first asked"]]


async def test_a_batch_is_there_as_soon_as_its_function_is_called_and_not_before() -> None:
    gate = asyncio.Event()
    users = DataLoader(Backend(gate=gate), name="users", max_concurrent_batches=1, max_batch_size=1)
    with record_batches() as batches:
        caller = awaits(users.load_many([1, 2]))
        await turns()
        assert batches["users"] == [[1]]
        gate.set()
        await caller
        assert batches["users"] == [[1], [2]]


async def test_a_batch_that_fails_was_sent_and_one_that_nobody_waits_for_was_not() -> None:
    async def fails(keys: list[int]) -> list[int]:
        raise ConnectionError

    users = DataLoader(fails, name="users")
    with record_batches() as batches:
        caller = awaits(users.load(1))
        await asyncio.sleep(0)
        caller.cancel()
        await turns()
        with pytest.raises(ConnectionError):
            await users.load(2)
    assert batches["users"] == [[2]]


async def test_the_items_of_a_batcher_are_recorded_too() -> None:
    with record_batches() as batches:
        async with Batcher(Backend(), name="rows", window=1) as batcher:
            await batcher.submit_many([{"a": 1}, {"a": 1}])
    assert batches == {"rows": [[{"a": 1}, {"a": 1}]]}
    batches.assert_batches(rows=1)


async def test_recordings_may_overlap_and_each_has_its_own_part() -> None:
    users = DataLoader(Backend(), name="users")
    with record_batches() as outer:
        await users.load(1)
        with record_batches() as inner:
            await users.load(2)
        await users.load(3)
    await users.load(4)
    assert (outer["users"], inner["users"]) == ([[1], [2], [3]], [[2]])
    assert _hooks.everywhere == []


async def test_what_was_open_before_or_is_sent_after_is_not_recorded() -> None:
    users = DataLoader(Backend(), name="users")
    before = awaits(users.load(1))
    await asyncio.sleep(0)
    with record_batches() as batches:
        await before
        after = awaits(users.load(2))
        await asyncio.sleep(0)
    await after
    assert batches == {}
    batches.assert_batches()


def test_all_threads_are_recorded_and_every_thread_may_look() -> None:
    count, loads = 4, 50
    ready = threading.Barrier(count)

    def work(name: str) -> None:
        async def main() -> None:
            users = DataLoader(Backend(), name=name)
            ready.wait(10)
            for key in range(loads):
                await users.load(key)
                assert batches[name][-1] == [key]

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=[f"users {number}"]) for number in range(count)]
    with record_batches() as batches:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert {name: len(keys) for name, keys in batches.items()} == {f"users {number}": loads for number in range(count)}


async def recorded() -> Batches:
    with record_batches() as batches:
        async with AppLoaders() as loaders:
            await together(loaders.users.load_many([1, 2]), loaders.posts.load(1))
            await loaders.users.load(3)
    return batches


async def test_other_numbers_than_expected_are_told_with_the_timeline() -> None:
    batches = await recorded()
    with pytest.raises(AssertionError) as caught:
        batches.assert_batches(users=1, tags=1)
    text = str(caught.value).splitlines()
    assert text[:5] == [
        "other batches were sent than expected",
        "users: 2 batches [[1, 2], [3]], not 1",
        "tags: 0 batches, not 1",
        "posts(first=3): 1 batch [[1]], not 0",
        "",
    ]
    assert text[5:] == str(batches.timeline).splitlines()
    assert "keys 1, 2" in str(batches.timeline)


async def test_loaders_that_are_not_mentioned_must_not_send_any() -> None:
    batches = await recorded()
    with pytest.raises(AssertionError, match=r"(?m)^posts\(first=3\): 1 batch \[\[1\]\], not 0$"):
        batches.assert_batches(users=2)
    with pytest.raises(AssertionError, match=r"(?m)^users: 2 batches \[\[1, 2\], \[3\]\], not 0$"):
        batches.assert_batches({"posts": 1}, users=0)
    batches.assert_batches(users=2, posts=1, tags=0)


async def test_of_a_loader_mentioned_with_some_parameters_the_others_are_told() -> None:
    with record_batches() as batches:
        async with AppLoaders() as loaders:
            await together(*[loaders.posts(first=first).load(1) for first in (1, 2)])
    batches.assert_batches(posts=2)
    batches.assert_batches({"posts(first=1)": 1}, posts=2)
    with pytest.raises(AssertionError, match=r"(?m)^posts\(first=2\): 1 batch \[\[1\]\], not 0$"):
        batches.assert_batches({"posts(first=1)": 1})


async def test_keys_in_place_of_a_number_are_refused() -> None:
    batches = await recorded()
    with pytest.raises(TypeError, match=r"takes numbers of batches; for keys, assert batches\['users'\] == \.\.\."):
        batches.assert_batches(users=[[1, 2]])  # type: ignore[arg-type]


async def fails_inside(error: BaseException, *, key: Any = 1) -> Batches:
    """Raise `error` in a block that is recorded twice, after one batch."""
    with record_batches(), record_batches() as batches:
        await DataLoader(Backend(lambda _: 1), name="users").load(key)
        error.args = (*error.args, batches)  # so that the test has them too
        raise error


async def test_an_assertion_that_leaves_the_block_takes_the_timeline_along_once() -> None:
    with pytest.raises(AssertionError) as caught:
        await fails_inside(AssertionError())
    (batches,) = caught.value.args
    batches.explain(caught.value)
    assert caught.value.__notes__ == [str(batches.timeline)]


async def test_an_assertion_that_tells_the_timeline_itself_takes_it_along_no_more() -> None:
    users = DataLoader(Backend(), name="users")
    with record_batches() as batches:
        await users.load(1)
        with pytest.raises(AssertionError) as caught:
            batches.assert_batches()
        batches.explain(caught.value)
    assert not hasattr(caught.value, "__notes__")


async def test_any_other_exception_leaves_the_block_as_it_is() -> None:
    with pytest.raises(LookupError) as caught:
        await fails_inside(LookupError())
    assert not hasattr(caught.value, "__notes__")
    assert _hooks.everywhere == []


async def test_a_key_that_cannot_be_shown_hides_no_failure() -> None:
    class Key:
        def __repr__(self) -> str:
            raise ValueError("not now")

    with pytest.raises(AssertionError) as caught:
        await fails_inside(AssertionError(), key=Key())
    (note,) = caught.value.__notes__
    assert re.search(r"keys <Key instance at \w+>$", note)
    (batches,) = caught.value.args
    with pytest.raises(AssertionError, match=r"users: 1 batch \[\[<Key instance at .*>\]\], not 2"):
        batches.assert_batches(users=2)


async def test_of_very_many_batches_the_first_are_shown_and_all_hints() -> None:
    with record_batches() as batches:
        users = DataLoader(Backend(), name="users")
        for key in range(100):
            await users.load(key)
    with pytest.raises(AssertionError) as caught:
        batches.assert_batches(users=1)
    text = str(caught.value)
    whole = len(str(batches.timeline).splitlines())
    shown, (left, hint) = text.splitlines()[3:-2], text.splitlines()[-2:]
    assert "users: 100 batches [[0], [1], [2], [3], [4], [5], [6], [7], [8], [9], ...], not 1" in text
    assert left == f"and {whole - len(shown) - 1} more lines: print(batches.timeline)"
    assert len(shown) == 80
    assert hint.startswith("hint: ")
    assert "users sent 100 batches of one key each" in hint


async def test_a_chart_is_whole_that_only_its_hints_make_long() -> None:
    with record_batches() as batches:
        one, other = DataLoader(Backend(), name="one"), DataLoader(Backend(), name="other")
        for loader in [one] * 13 + [other] * 13:
            await loader.load(object())
    assert len(batches.timeline.hints()) == 2
    with pytest.raises(AssertionError) as caught:
        batches.assert_batches(one=13)
    assert str(caught.value).endswith(f"\n\n{batches.timeline}")


async def test_of_very_many_keys_the_first_are_shown() -> None:
    with record_batches() as batches:
        await DataLoader(Backend(), name="users").load_many(range(1000))
    assert re.search(r"keys 0, 1, .*, 18, 19 and 980 more$", str(batches.timeline))


def test_batches_look_like_what_they_are_compared_with() -> None:
    batches = asyncio.run(recorded())
    assert repr(batches) == "{'users': [[1, 2], [3]], 'posts(first=3)': [[1]]}"


async def test_a_loader_whose_name_is_no_unicode_is_found_by_it() -> None:
    with record_batches() as batches:
        await DataLoader(Backend(), name="file \udcff(first=3)").load(1)
    assert batches["file \udcff(first=3)"] == batches["file \\udcff"] == [[1]]
    assert list(batches) == ["file \\udcff(first=3)"]

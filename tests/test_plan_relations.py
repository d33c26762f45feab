"""The plan answers as if there were none: the same data, errors and nulls, in no more time, with no more batches.

Every test asks with a plan and without (`answers` compares) and says what it has on top.
"""

import asyncio
import itertools
import types
from collections import namedtuple
from collections.abc import AsyncIterator
from typing import Annotated, Any, Generic, TypeVar

import cachetools
import pytest
import strawberry
from strawberry.extensions import FieldExtension, SchemaExtension
from strawberry.permission import BasePermission

from loader import Loaders, dataloader
from loader.strawberry import install, relation
from loader.strawberry._ahead import Ahead
from loader.strawberry._operation import current_operation
from loader.strawberry._relation import RelationField
from tests.answers import INCREMENTAL, Answer, Log, QuietSchema, answers, ask, schemas

T = TypeVar("T")

LRU: Any = cachetools.LRUCache(1)


class Backend(Loaders):
    """What there is: 5 authors, of whom odd ones are in company 1 and even ones in company 2, and posts of theirs.

    Attributes:
        delays: How long a batch of a loader takes.
        broken: The loaders whose batches fail as a whole if they have one of these keys.
        gone: The keys that a loader does not know.
        bad: The keys for which a loader returns an exception.
    """

    def __init__(self, **changes: Any) -> None:
        LRU.clear()
        self.log = Log()
        self.delays: dict[str, float] = {}
        self.broken: dict[str, set[int]] = {}
        self.gone: dict[str, set[int]] = {}
        self.bad: dict[str, set[int]] = {}
        vars(self).update(changes)

    async def fetch(self, name: str, keys: list[Any], make: Any) -> dict[Any, Any]:
        self.log.batches.append((name, keys))
        await asyncio.sleep(self.delays.get(name, 1.0))
        if self.broken.get(name, set()) & set(keys):
            raise ConnectionError(f"{name} is down")
        rows = {key: make(key) for key in keys if key not in self.gone.get(name, ())}
        rows.update({key: ValueError(f"{name} {key} is bad") for key in self.bad.get(name, ()) if key in rows})
        return rows

    @dataloader
    async def companies(self, ids: list[int]) -> dict[int, "Company"]:
        return await self.fetch("companies", ids, lambda key: Company(id=key, boss_id=key))

    @dataloader
    async def authors(self, ids: list[int]) -> dict[int, "Author"]:
        return await self.fetch(
            "authors", ids, lambda key: Author(id=key, company_id=2 - key % 2, boss_id=key - 1 if key > 1 else None)
        )

    @dataloader(cache=False)
    async def fresh_authors(self, ids: list[int]) -> dict[int, "Author"]:
        return await self.fetch("fresh_authors", ids, lambda key: Author(id=key, company_id=2 - key % 2, boss_id=1))

    @dataloader(max_batch_size=2, max_concurrent_batches=1)
    async def authors_by_two(self, ids: list[int]) -> dict[int, "Author"]:
        return await self.fetch("authors_by_two", ids, lambda key: Author(id=key, company_id=key, boss_id=None))

    @dataloader(max_pending=3)
    async def few_authors(self, ids: list[int]) -> dict[int, "Author"]:
        return await self.fetch("few_authors", ids, lambda key: Author(id=key, company_id=1, boss_id=None))

    @dataloader
    async def slow_authors(self, ids: list[int]) -> AsyncIterator[tuple[int, "Author"]]:
        self.log.batches.append(("slow_authors", ids))
        for key in ids:
            await asyncio.sleep(1)
            yield key, Author(id=key, company_id=key, boss_id=None)

    @dataloader
    async def slow_companies(self, ids: list[int]) -> AsyncIterator[tuple[int, "Company"]]:
        self.log.batches.append(("slow_companies", ids))
        for key in ids:
            await asyncio.sleep(10 / key)
            yield key, Company(id=key, boss_id=key)

    @dataloader(cache_map=lambda: LRU)
    async def forgotten_authors(self, ids: list[int]) -> dict[int, "Author"]:
        return await self.fetch("forgotten_authors", ids, lambda key: Author(id=key, company_id=1, boss_id=None))

    @dataloader(cache_key_fn=str)
    async def listed(self, keys: list[list[int]]) -> list["Author"]:
        self.log.batches.append(("listed", keys))
        await asyncio.sleep(1)
        return [Author(id=sum(key), company_id=1, boss_id=None) for key in keys]

    @dataloader
    async def comments(self, ids: list[int], *, first: int = 2) -> dict[int, list["Comment | None"]]:
        return await self.fetch(
            "comments", ids, lambda key: [Comment(id=10 * key + n, author_id=key % 5 + 1 + n) for n in range(first)]
        )

    @dataloader
    async def tags(self, ids: list[int]) -> dict[int, list[str]]:
        return await self.fetch("tags", ids, lambda key: [f"tag {key}"])

    @dataloader
    async def things(self, ids: list[int]) -> dict[int, Any]:
        return await self.fetch(
            "things",
            ids,
            lambda key: (
                Author(id=key, company_id=2 - key % 2, boss_id=None) if key % 2 else Company(id=key, boss_id=key)
            ),
        )


class BrokenError(Exception):
    pass


def broken_key(source: Any) -> Any:
    if source.id % 2:
        raise BrokenError(f"no key in {source.id}")
    return source.id


async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"slept {seconds:g}"


@strawberry.interface
class Named:
    id: int

    boss_id: strawberry.Private[int | None]
    boss: "Author | None" = relation(Backend.authors, "boss_id")


@strawberry.type
class Company(Named):
    id: int
    boss_id: strawberry.Private[int | None]


class Never(BasePermission):
    message = "no"

    def has_permission(self, source: Any, info: strawberry.Info, **kwargs: Any) -> bool:
        return bool(source.id % 2 == 0)


class NeverLater(BasePermission):
    message = "no, later"

    async def has_permission(self, source: Any, info: strawberry.Info, **kwargs: Any) -> bool:
        await asyncio.sleep(0)
        return bool(source.id % 2 == 0)


class Doubling(FieldExtension):
    def resolve(self, next_: Any, source: Any, info: strawberry.Info, **kwargs: Any) -> Any:
        info.context["ran"].append(source.id)
        return next_(source, info, **kwargs)


@strawberry.type
class Author(Named):
    id: int
    boss_id: strawberry.Private[int | None]
    company_id: strawberry.Private[int]
    company: Company = relation(Backend.companies, "company_id")
    maybe_company: Company | None = relation(Backend.companies, "company_id")
    slow_company: Company = relation(Backend.slow_companies, "company_id")
    fresh_self: "Author | None" = relation(Backend.fresh_authors, "id")
    fresh_broken: "Author | None" = relation(Backend.fresh_authors, broken_key)
    same: "Author | None" = relation(Backend.authors, "id")

    @strawberry.field
    async def nap(self, seconds: float) -> str:
        return await nap(seconds)

    @strawberry.field
    def name(self) -> str:
        return f"author {self.id}"


Thing = Annotated[Author | Company, strawberry.union("Thing")]


@strawberry.type
class Comment:
    id: int
    author_id: strawberry.Private[int]
    author: Author | None = relation(Backend.authors, "author_id")


@strawberry.type
class Box:
    author_id: strawberry.Private[Any]
    author: Author = relation(Backend.authors, "author_id")
    maybe: Author | None = relation(Backend.authors, "author_id")
    inner: "Box | None" = None
    boxes: list["Box | None"] | None = None
    label: Any = strawberry.field(default="box", graphql_type=str)


@strawberry.type
class Post:
    id: int
    author_id: strawberry.Private[int]
    author: Author = relation(Backend.authors, "author_id")
    editor: Author | None = relation(Backend.authors, lambda post: post.author_id % 5 + 1)
    fresh: Author | None = relation(Backend.fresh_authors, "author_id")
    fresh_editor: Author | None = relation(Backend.fresh_authors, lambda post: post.author_id % 5 + 1)
    by_two: Author | None = relation(Backend.authors_by_two, "author_id")
    few: Author | None = relation(Backend.few_authors, "id")
    slow: Author | None = relation(Backend.slow_authors, "author_id")
    forgotten: Author | None = relation(Backend.forgotten_authors, "author_id")
    listed: Author | None = relation(Backend.listed, lambda post: [post.author_id])
    comments: list[Comment | None] = relation(Backend.comments, "id")
    tags: list[str] | None = relation(Backend.tags, "id")
    thing: Thing | None = relation(Backend.things, "id")
    named: Named | None = relation(Backend.things, "id")
    guarded: Author | None = relation(Backend.authors, "author_id", permission_classes=[Never])
    guarded_later: Author | None = relation(Backend.authors, "author_id", permission_classes=[NeverLater])
    extended: Author | None = relation(Backend.authors, "author_id", extensions=[Doubling()])
    maybe_broken: Author | None = relation(Backend.authors, broken_key)
    broken: Author = relation(Backend.authors, broken_key)
    unhashable: Author | None = relation(Backend.authors, lambda post: [post.id])
    coauthor_id: strawberry.Private[int | None] = None
    coauthor: Author | None = relation(Backend.authors, "coauthor_id")
    needed_coauthor: Author = relation(Backend.authors, "coauthor_id")
    box: Box | None = None
    title: Any = strawberry.field(default="title", graphql_type=str)

    @strawberry.field
    async def nap(self, seconds: float) -> str:
        return await nap(seconds)

    @strawberry.field
    async def napping(self, seconds: float) -> "Post":
        await asyncio.sleep(seconds)
        return self

    @strawberry.field
    def fails(self) -> str:
        raise BrokenError(f"{self.id} fails")


def posts(count: int) -> list[Post]:
    return [
        Post(
            id=n,
            author_id=n % 5 + 1,
            coauthor_id=None if n % 3 else 1,
            box=Box(author_id=n % 5 + 1, inner=Box(author_id=1), boxes=[Box(author_id=2), None]),
        )
        for n in range(1, count + 1)
    ]


def things() -> list[Any]:
    return [Author(id=1, company_id=1, boss_id=2), Company(id=2, boss_id=3), Author(id=3, company_id=2, boss_id=4)]


@strawberry.type
class Query:
    @strawberry.field
    def posts(self, n: int = 6) -> list[Post]:
        return posts(n)

    @strawberry.field
    def maybe_posts(self, n: int = 6) -> list[Post | None] | None:
        return [post if post.id % 4 else None for post in posts(n)]

    @strawberry.field
    async def late_posts(self, n: int = 6, seconds: float = 1) -> list[Post]:
        await asyncio.sleep(seconds)
        return posts(n)

    @strawberry.field
    def post(self) -> Post:
        return posts(1)[0]

    @strawberry.field
    def rows(self) -> list[list[Post]]:
        return [posts(2), posts(4), []]

    @strawberry.field
    def streamed_posts(self) -> list[Post]:
        async def stream() -> AsyncIterator[Post]:
            for post in posts(6):
                await asyncio.sleep(post.id % 2)
                yield post

        return stream()  # type: ignore[return-value]  # as above

    @strawberry.field
    def iterated_posts(self) -> list[Post]:
        return iter(posts(6))  # type: ignore[return-value]  # what graphql-core allows

    @strawberry.field
    def tupled_posts(self) -> list[Post]:
        return tuple(posts(6))  # type: ignore[return-value]  # as above

    @strawberry.field
    def iterated_rows(self) -> list[list[Post]]:
        return [iter(posts(2)), posts(2)]  # type: ignore[list-item]  # as above

    @strawberry.field
    def awaited_posts(self) -> list[Post]:
        async def later(post: Post) -> Post:
            await asyncio.sleep(1)
            return post

        return [post if post.id % 2 else later(post) for post in posts(6)]  # type: ignore[misc]  # as above

    @strawberry.field
    def failed_posts(self) -> list[Post | None]:
        return [post if post.id % 2 else BrokenError("an item") for post in posts(6)]  # type: ignore[misc]  # as above

    @strawberry.field
    def things(self) -> list[Thing]:
        return things()

    @strawberry.field
    def named(self) -> list[Named]:
        return things()

    @strawberry.field
    def boxes(self, info: strawberry.Info, name: str = "boxes") -> list[Box | None]:
        return info.context[name]  # type: ignore[no-any-return]  # what the test says

    @strawberry.field
    async def nap(self, seconds: float) -> str:
        return await nap(seconds)

    @strawberry.field
    async def company(self, info: strawberry.Info, id: int, seconds: float = 0) -> Company:  # noqa: A002  # as named
        if seconds:
            await asyncio.sleep(seconds)
        return await info.context["loaders"].companies.load(id)  # type: ignore[no-any-return]  # typed by the schema


BOTH = schemas(Query, Backend)


async def same(query: str, both: Any = BOTH, make: Any = Backend, **more: Any) -> tuple[Answer, Answer]:
    return await answers(both, query, make, **more)


async def planned(
    query: str, make: Any = Backend, *, root: Any = Query, types: Any = (), both: Any = BOTH, **more: Any
) -> Answer:
    """The answer with a plan, of a query whose lists all have everything when they are completed."""
    counts: list[int] = []
    load = RelationField.resolve

    def resolve(self: Any, source: Any, info: Any, kwargs: Any = None) -> Any:
        value = load(self, source, info, kwargs)
        counts.append(asyncio.isfuture(value))
        return value

    schema = QuietSchema(root, types=types)
    RelationField.resolve = resolve  # type: ignore[method-assign]  # put back below
    try:
        install(schema)
        answer = await ask(schema, query, make(), **more)
    finally:
        RelationField.resolve = load  # type: ignore[method-assign]  # as above
    assert counts
    assert not any(counts)
    assert answer == await ask(both[0], query, make(), **more)
    await same(query, both, make, **more)
    return answer


# -- what is planned -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "batches"),
    [
        ("{ posts { id author { id } } }", 1),
        ("{ posts { author { id } author { company { id } } } }", 2),
        ("{ posts { a: author { id } b: author { company { id } } editor { company { boss { id } } } } }", 2),
        ("{ posts { comments { author { company { id } } } } }", 3),
        ("{ posts { few: comments(first: 1) { author { id } } more: comments(first: 3) { author { id } } } }", 3),
        ("{ posts { tags box { author { id } inner { author { id } } boxes { author { id } } } } }", 2),
        ("{ rows { author { company { id } } } }", 2),
        ("{ maybePosts { author { id } } }", 1),
        ("{ tupledPosts { author { id } } }", 1),
        ("{ latePosts { author { id } } }", 1),
        ("{ things { ... on Author { company { id } } ... on Company { boss { id } } } }", 2),
        ("{ named { id boss { id } ... on Author { company { boss { id } } } } }", 3),
        ("{ posts { thing { ... on Author { company { id } } __typename } named { boss { id } } } }", 3),
        ("{ posts { coauthor { id } maybeBroken: coauthor { id } } }", 1),
        ("query { ...F } fragment F on Query { posts { ...P } } fragment P on Post { author { ... { id } } }", 1),
        ("{ __typename posts { __typename author { __typename id } } __schema { queryType { name } } }", 1),
    ],
)
async def test_a_list_is_completed_with_everything_loaded(query: str, batches: int) -> None:
    answer = await planned(query)
    assert answer.errors == []
    assert answer.log.count == batches


async def test_skip_and_include_take_their_variables() -> None:
    query = """
    query ($no: Boolean!, $yes: Boolean!, $n: Int!) {
      posts(n: 3) {
        author @include(if: $no) { id }
        comments(first: $n) @skip(if: $no) { author { id company @skip(if: $yes) { id } } }
        ... @include(if: $yes) { tags }
        ... on Post @skip(if: $yes) { slow { id } }
      }
    }
    """
    answer = await planned(query, variable_values={"no": False, "yes": True, "n": 1})
    assert answer.log.keys("comments") == [[1, 2, 3]]
    assert [len(post["comments"]) for post in answer.data["posts"]] == [1, 1, 1]
    assert {name for name, _ in answer.log.batches} == {"comments", "tags", "authors"}


async def test_a_fragment_may_stand_at_two_levels() -> None:
    query = """
    { posts(n: 3) { author { ...F boss { ...F } } } }
    fragment F on Author { company { id } same { id } }
    """
    answer = await planned(query)
    assert [sorted(keys) for keys in answer.log.keys("companies")] == [[1, 2]]


async def test_what_a_relation_asks_below_follows_it_at_once_and_not_its_neighbours() -> None:
    delays = {"authors": 1.0, "companies": 5.0, "comments": 4.0, "tags": 3.0}
    answer = await planned(
        "{ posts { author { company { id } } comments { id } tags } }", lambda: Backend(delays=delays)
    )
    assert answer.took == 6


async def test_a_key_that_is_answered_before_the_others_is_followed_before_them() -> None:
    """Keys of an async generator, of other batches or of the cache: what is below them does not wait for the rest."""
    for query in (
        "{ posts(n: 4) { slow { slowCompany { id } } } }",
        "{ posts(n: 4) { byTwo { slowCompany { id } } } }",
        "{ posts(n: 4) { byTwo { company { id } } slow { company { id } } } }",
    ):
        fast, slow = await same(query)
        assert fast.took == slow.took
        assert fast.log.batches == slow.log.batches

    async def half_known(schema: strawberry.Schema) -> tuple[float, Any]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loaders = Backend()
        async with loaders:
            result = await schema.execute(
                "{ company(id: 1) { boss { id } } latePosts { author { slowCompany { id } } } }",
                context_value={"loaders": loaders},
            )
        return round(loop.time() - began, 6), result.data

    assert await half_known(BOTH[0]) == await half_known(BOTH[1])


async def test_a_list_whose_keys_are_all_cached_does_not_wait() -> None:
    answer = await planned("{ posts(n: 5) { author { id } } late: latePosts(n: 5, seconds: 3) { author { id } } }")
    assert answer.log.batches == [("authors", [2, 3, 4, 5, 1])]
    assert answer.took == 3


async def test_a_key_is_asked_for_with_those_of_other_fields() -> None:
    query = "{ posts { author { company { id } } } company(id: 7) { id } late: company(id: 8, seconds: 1) { id } }"
    fast, slow = await same(query)
    assert fast.log.batches == slow.log.batches
    assert fast.log.keys("companies")[1] == slow.log.keys("companies")[1]


async def test_two_lists_at_once_share_their_batches() -> None:
    answer = await planned("{ posts(n: 2) { author { company { id } } } tupledPosts { author { company { id } } } }")
    assert [name for name, _ in answer.log.batches] == ["authors", "companies"]


async def test_a_mutation_starts_each_root_field_afresh() -> None:
    @strawberry.type
    class Mutation:
        @strawberry.mutation
        def touch(self) -> list[Post]:
            return posts(2)

    both = schemas(Query, Backend, mutation=Mutation)
    answer, _ = await same("mutation { a: touch { author { id } } b: touch { author { id } } }", both)
    assert answer.log.batches == [("authors", [2, 3]), ("authors", [2, 3])]


async def test_events_of_a_subscription_are_planned_each_on_its_own() -> None:
    @strawberry.type
    class Subscription:
        @strawberry.subscription
        async def ticks(self) -> AsyncIterator[list[Post]]:
            for _ in range(2):
                yield posts(2)

    both = schemas(Query, Backend, subscription=Subscription)
    seen = []
    for schema in both:
        async with Backend() as loaders:
            events = await schema.subscribe(
                "subscription { ticks { author { id } } }", context_value={"loaders": loaders}
            )
            seen.append([event.data async for event in events])
            assert loaders.log.batches == [("authors", [2, 3]), ("authors", [2, 3])]
    assert seen[0] == seen[1]


# -- what is not, and why --------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", ["guarded", "guardedLater", "extended"])
async def test_permissions_and_extensions_run_before_anything_is_loaded(later: str) -> None:
    contexts: list[dict[str, Any]] = [{"ran": []}, {"ran": []}]
    for schema, context in zip(BOTH, contexts, strict=True):
        answer = await ask(schema, f"{{ posts(n: 4) {{ {later} {{ id }} }} }}", Backend(), context=context)
        assert answer.log.batches == [("authors", [2, 3, 4, 5] if later == "extended" else [3, 5])]
    assert contexts[0] == contexts[1]
    fast, _ = await same(f"{{ posts {{ {later} {{ company {{ id }} }} author {{ id }} }} }}", context={"ran": []})
    assert [sorted(keys) for keys in fast.log.keys("companies")] == [[1, 2]]


async def test_fields_that_wait_for_something_of_their_own_are_not_held_back() -> None:
    for query in (
        "{ posts { nap(seconds: 5) author { id } } }",
        "{ posts { author { nap(seconds: 5) } } }",
        "{ posts { author { name company { id } } } }",
        "{ posts { author { id } napping(seconds: 5) { author { company { id } } } } }",
        "{ posts { box { author { company { id } } } napping(seconds: 1) { tags } } nap(seconds: 4) }",
    ):
        fast, slow = await same(query)
        assert fast.took == slow.took
        assert fast.log.batches == slow.log.batches


async def test_an_awaitable_in_the_place_of_a_value_is_not_held_back() -> None:
    def boxes() -> list[Box | None]:
        return [
            Box(author_id=1, label=nap(3)),
            Box(author_id=2, inner=nap_box(), boxes=nap_box()),  # type: ignore[arg-type]  # what graphql-core allows
        ]

    async def nap_box() -> Any:
        await asyncio.sleep(3)

    for query in ("{ boxes { author { id } label } }", "{ boxes { author { id } inner { author { id } } } }"):
        for schema in BOTH:
            context = {"boxes": boxes()}
            answer = await ask(schema, query, Backend(), context=context)
            assert answer.took == 3
            for box in context["boxes"]:
                assert box is not None
                for value in vars(box).values():
                    if asyncio.iscoroutine(value):
                        value.close()  # the query did not ask for it


@pytest.mark.parametrize(
    "query",
    [
        "{ streamedPosts { author { company { id } } } }",
        "{ iteratedPosts { author { company { id } } } }",
        "{ iteratedRows { author { company { id } } } }",
        "{ awaitedPosts { author { company { id } } } }",
        "{ failedPosts { author { company { id } } } }",
        "{ post { author { company { id } } } }",
    ],
)
async def test_lists_of_another_kind_are_answered_as_ever(query: str) -> None:
    fast, slow = await same(query)
    assert fast.log.count == slow.log.count
    assert bool(fast.errors) == ("failedPosts" in query)


async def test_a_schema_extension_that_intercepts_fields_sees_each_before_it_is_loaded() -> None:
    class Intercepting(SchemaExtension):
        def resolve(self, _next: Any, root: Any, info: Any, *args: Any, **kwargs: Any) -> Any:
            if info.field_name == "author" and root.id % 2:
                return None
            return _next(root, info, *args, **kwargs)

    both = schemas(Query, Backend, extensions=[Intercepting])
    answer, _ = await same("{ maybePosts(n: 3) { editor { id } author { id } } }", both)
    assert answer.log.batches == [("authors", [3, 4, 5])]
    assert answer.data["maybePosts"][0] is None


async def test_the_plan_can_be_switched_off() -> None:
    schema = QuietSchema(Query)
    install(schema, plan=False)
    loaders = Backend()
    answer = await ask(schema, "{ posts { author { id } } }", loaders)
    assert answer.log.count == 1
    assert current_operation.get() is None


async def test_a_type_that_takes_time_to_be_told_is_not_held_back() -> None:
    async def is_robot(value: Any, _: Any) -> bool:
        await asyncio.sleep(value.takes)
        return isinstance(value, Robot)

    @strawberry.interface
    class Being:
        owner_id: strawberry.Private[int]
        owner: Author | None = relation(Backend.authors, "owner_id")

    @strawberry.type
    class Robot(Being):
        takes: strawberry.Private[int] = 0
        name: str = "robot"

    Robot.__strawberry_definition__.is_type_of = is_robot  # type: ignore[attr-defined]  # may be async

    @strawberry.type
    class Beings:
        @strawberry.field
        def beings(self) -> list[Being]:
            return [Robot(owner_id=n, takes=2 * n) for n in range(3)]

        @strawberry.field
        def robots(self) -> list[Robot]:
            return [Robot(owner_id=n, takes=2 * n) for n in range(3)]

    both = schemas(Beings, Backend, types=[Robot])
    for name in ("beings", "robots"):
        answer, plain = await same(f"{{ {name} {{ owner {{ id }} }} }}", both)
        assert answer.took == plain.took == 5
        assert answer.log.count == 3


async def test_objects_that_go_for_another_type_are_left_to_strawberry() -> None:
    @strawberry.type
    class Cat:
        author_id: strawberry.Private[int]
        author: Author = relation(Backend.authors, "author_id")

    @strawberry.type
    class Dog:
        author_id: strawberry.Private[int]
        author: Author = relation(Backend.authors, lambda dog: dog.author_id + 1)

    Pet = Annotated[Cat | Dog, strawberry.union("Pet")]  # noqa: N806  # a type

    @strawberry.type
    class Pets:
        @strawberry.field
        def pets(self) -> list[Pet]:
            row: Any = types.SimpleNamespace(author_id=1)
            return [strawberry.cast(Dog, row), strawberry.cast(Dog, Cat(author_id=1)), Cat(author_id=1)]

        @strawberry.field
        def cats(self) -> list[Pet]:
            return [strawberry.cast(Dog, Cat(author_id=1)), Cat(author_id=1)]

        @strawberry.field
        def rows(self) -> list[Cat]:
            return [types.SimpleNamespace(author_id=3), Cat(author_id=1)]  # type: ignore[list-item]  # any object

    both = schemas(Pets, Backend)
    pets = "{ ... on Dog { author { id } } ... on Cat { author { id } } }"
    answer, _ = await same(f"{{ pets {pets} cats {pets} rows {{ author {{ id }} }} }}", both)
    assert answer.errors == []
    assert [pet["author"]["id"] for pet in answer.data["pets"]] == [2, 2, 1]
    assert [row["author"]["id"] for row in answer.data["rows"]] == [3, 1]


async def test_a_value_of_a_wrong_type_fails_as_ever() -> None:
    @strawberry.type
    class Wrong:
        @strawberry.field
        def companies(self) -> list[Company | None]:
            return [Company(id=1, boss_id=2), object()]  # type: ignore[list-item]  # what is tested

        @strawberry.field
        def unknown(self) -> list[Named | None]:
            return [Company(id=1, boss_id=2), object()]  # type: ignore[list-item]  # what is tested

    both = schemas(Wrong, Backend, types=[Author])
    answer, _ = await same("{ companies { boss { id } } unknown { boss { id } } }", both)
    assert [path for path, _ in answer.errors] == [["companies", 1], ["unknown", 1]]


async def test_rows_that_are_tuples_are_objects() -> None:
    Row = namedtuple("Row", ["id", "author_id"])  # noqa: PYI024  # a row as a database driver makes it

    @strawberry.type
    class Rows:
        @strawberry.field
        def posts(self) -> list[Post]:
            return [Row(1, 2), Row(2, 3)]  # type: ignore[list-item]  # any object that has the attributes

    answer, _ = await same("{ posts { id author { id } } }", schemas(Rows, Backend))
    assert answer.log.batches == [("authors", [2, 3])]


async def test_generic_objects_in_an_abstract_place_are_left_to_strawberry() -> None:
    @strawberry.type
    class Edge(Generic[T]):
        node: T
        author_id: strawberry.Private[int] = 1
        author: Author = relation(Backend.authors, "author_id")

    @strawberry.type
    class Edges:
        @strawberry.field
        def edges(self) -> list[Edge[int]]:
            return [Edge(node=1), Edge(node=2, author_id=2)]

        @strawberry.field
        def either(self) -> list[Annotated[Edge[int] | Edge[str], strawberry.union("Either")]]:
            return [Edge(node=1), Edge(node="2", author_id=2)]

    both = schemas(Edges, Backend)
    answer, _ = await same(
        "{ edges { author { id } } either { ... on IntEdge { author { id } } ... on StrEdge { author { id } } } }", both
    )
    assert answer.errors == []
    assert answer.log.batches == [("authors", [1, 2])]


# -- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["author", "editor", "fresh", "broken", "maybeBroken", "unhashable"])
@pytest.mark.parametrize(
    "trouble",
    [
        {"broken": {"authors": {3}, "fresh_authors": {3}}},
        {"gone": {"authors": {3, 4}, "fresh_authors": {3}}},
        {"bad": {"authors": {3, 4}, "fresh_authors": {3}}},
        {"broken": {"companies": {1}}},
        {"broken": {"companies": {2}, "authors": {5}}, "delays": {"companies": 5}},
    ],
)
@pytest.mark.parametrize("root", ["posts", "maybePosts", "rows", "latePosts"])
async def test_errors_are_the_same(field: str, trouble: dict[str, Any], root: str) -> None:
    fast, slow = await same(
        f"{{ {root} {{ tags {field} {{ company {{ id }} boss {{ maybeCompany {{ boss {{ id }} }} }} }} }} }}",
        make=lambda: Backend(**trouble),
    )
    assert fast.errors
    assert fast.took == slow.took


async def test_an_error_is_answered_when_it_is_known_and_not_when_everything_else_is() -> None:
    for trouble in ({"broken": {"authors": {3}}}, {"gone": {"authors": {3}}}):
        for query in (
            "{ posts { author { id } tags slow { id } } }",
            "{ posts { tags comments { id } author { company { id } } } }",
        ):
            delays = {"authors": 1.0, "tags": 50.0, "comments": 20.0}
            fast, slow = await same(
                query, make=lambda trouble=trouble, delays=delays: Backend(delays=delays, **trouble)
            )
            assert fast.data is None
            assert fast.took == slow.took == 1


async def test_a_null_where_there_has_to_be_a_value_fails_without_waiting() -> None:
    for query, path in (
        ("{ posts { tags neededCoauthor { id } } }", ["posts", 0, "neededCoauthor"]),
        ("{ maybePosts { tags neededCoauthor { id } } }", ["maybePosts", 0, "neededCoauthor"]),
        ("{ posts { fails author { id } } }", ["posts", 0, "fails"]),
    ):
        fast, slow = await same(query)
        assert fast.errors[0][0] == path
        assert fast.took == slow.took
        assert fast.log.count == slow.log.count

    for box in (
        Box(author_id=1, label=None),
        Box(author_id=1, label=BrokenError("label")),
        Box(author_id=None),
        object(),
    ):
        fast, slow = await same("{ boxes { author { id } label } }", context={"boxes": [Box(author_id=2), box]})
        assert fast.errors
        assert fast.log.count == slow.log.count
        assert fast.took == slow.took


async def test_nulls_that_come_from_a_loader_are_found_when_they_come() -> None:
    class Nulls(Backend):
        @dataloader
        async def rows(self, ids: list[int]) -> dict[int, Any]:
            return await self.fetch("rows", ids, lambda key: None if key == 2 else Node(id=key))

        @dataloader
        async def lists(self, ids: list[int]) -> dict[int, Any]:
            return await self.fetch("lists", ids, lambda key: [None, Node(id=key)] if key == 2 else [Node(id=key)])

    @strawberry.type
    class Node:
        id: int
        needed: "Node" = relation(Nulls.rows, "id")
        maybe: "Node | None" = relation(Nulls.rows, "id")
        nodes: "list[Node]" = relation(Nulls.lists, "id")
        maybes: "list[Node | None] | None" = relation(Nulls.lists, "id")
        tags: list[str] = relation(Nulls.tags, "id")

    @strawberry.type
    class Root:
        @strawberry.field
        def nodes(self) -> list[Node | None]:
            return [Node(id=1), Node(id=2)]

    for field in Node.__strawberry_definition__.fields:  # type: ignore[attr-defined]  # what `strawberry.type` adds
        if field.type_annotation is not None:
            field.type_annotation.namespace = {"Node": Node}
    both = schemas(Root, Nulls)
    delays = {"tags": 9.0}
    for name in ("needed", "maybe", "nodes", "maybes"):
        fast, slow = await same(
            f"{{ nodes {{ {name} {{ maybe {{ id }} }} tags }} }}", both, lambda: Nulls(delays=delays)
        )
        assert bool(fast.errors) == (name in ("needed", "nodes"))
        assert fast.took == slow.took


async def test_a_key_that_failed_in_one_place_is_asked_for_again_in_a_deeper_one() -> None:
    """The batch [2, 3] fails for 3, and 2 alone does not: each place has the answer that it has without a plan."""
    query = "{ posts(n: 2) { editor { id } fresh { same { id company { id } } freshSelf { id } } } }"
    fast, _ = await same(query, make=lambda: Backend(broken={"authors": {4}, "fresh_authors": {99}}))
    assert [path for path, _ in fast.errors] == [["posts", 0, "editor"], ["posts", 1, "editor"]]
    assert fast.log.keys("authors") == [[3, 4], [2, 3]]
    assert [post["fresh"]["same"]["id"] for post in fast.data["posts"]] == [2, 3]


async def test_what_arrives_together_with_an_error_is_not_asked_for_again() -> None:
    """Both places get their answers from one batch, and the first of them ends the wait."""
    fast, slow = await same("{ posts(n: 3) { fresh { freshBroken { id } } freshEditor { id } } }")
    assert fast.errors
    assert sorted(fast.log.batches) == sorted(slow.log.batches)


async def test_a_place_that_is_not_loaded_yet_has_no_other_places_error() -> None:
    """The companies fail while the deeper authors are under way, who failed in the place above."""
    query = "{ posts(n: 2) { fresh { same { id } freshSelf { same { id } company { id } } } } }"
    trouble = {"authors": {3}, "companies": {1, 2}}
    fast, slow = await same(query, make=lambda: Backend(broken=trouble, delays={"companies": 0.5, "authors": 0.75}))
    assert fast.took == slow.took
    assert fast.log.batches == slow.log.batches
    assert fast.log.keys("authors") == [[2, 3], [2, 3]]


async def test_without_a_cache_each_place_has_its_own_answer() -> None:
    class Counting(Backend):
        count = 0

        @dataloader(cache=False)
        async def counts(self, ids: list[int]) -> list[Any]:
            self.log.batches.append(("counts", ids))
            self.count += 1
            return [Counted(id=key, count=self.count) for key in ids]

    @strawberry.type
    class Counted:
        id: int
        count: int
        next: "Counted" = relation(Counting.counts, "id")

    @strawberry.type
    class Root:
        @strawberry.field
        def counted(self) -> list[Counted]:
            return [Counted(id=1, count=0), Counted(id=2, count=0)]

    for field in Counted.__strawberry_definition__.fields:  # type: ignore[attr-defined]  # as above
        if field.type_annotation is not None:
            field.type_annotation.namespace = {"Counted": Counted}
    both = schemas(Root, Counting)
    fast, _ = await same("{ counted { count next { count next { count next { count } } } } }", both, Counting)
    assert fast.data["counted"][1] == {
        "count": 0, "next": {"count": 1, "next": {"count": 2, "next": {"count": 3}}}
    }  # fmt: skip
    assert fast.log.batches == [("counts", [1, 2])] * 3


class Halls(Loaders):
    """Batches of two or three, so that the order of the keys says which of them share one; or answers one by one."""

    def __init__(self) -> None:
        self.log = Log()

    @dataloader(max_batch_size=2)
    async def halls(self, ids: list[int]) -> dict[int, "Hall"]:
        self.log.batches.append(("halls", ids))
        await asyncio.sleep(1)
        return {key: Hall(id=key) for key in ids}

    @dataloader(max_batch_size=3)
    async def halls_by_three(self, ids: list[int]) -> dict[int, "Hall"]:
        self.log.batches.append(("halls", ids))
        await asyncio.sleep(1)
        return {key: Hall(id=key) for key in ids}

    @dataloader
    async def lobbies(self, ids: list[int]) -> list["Lobby"]:
        await asyncio.sleep(1)
        return [Lobby(id=key) for key in ids]

    @dataloader
    async def signs(self, ids: list[int]) -> list[list[str]]:
        await asyncio.sleep(1)
        return [[f"hall {key}"] for key in ids]

    @dataloader
    async def doors(self, ids: list[int]) -> AsyncIterator[tuple[int, "Hall"]]:
        self.log.batches.append(("doors", ids))
        for key in ids:
            await asyncio.sleep(1)
            yield key, Hall(id=key)


@strawberry.type
class Hall:
    id: int


@strawberry.type
class Lobby:
    id: int
    door: Hall = relation(Halls.doors, lambda lobby: lobby.id + 20)


@strawberry.interface
class Guest:
    id: int
    hall: Hall = relation(Halls.halls, "id")
    next_hall: Hall = relation(Halls.halls, lambda guest: guest.id + 10)
    third: Hall = relation(Halls.halls_by_three, "id")
    next_third: Hall = relation(Halls.halls_by_three, lambda guest: guest.id + 10)
    door: Hall = relation(Halls.doors, "id")
    next_door: Hall = relation(Halls.doors, lambda guest: guest.id + 10)
    lobby: Lobby = relation(Halls.lobbies, "id")
    signs: list[str] = relation(Halls.signs, "id")
    friend: "Guest | None" = None
    friends: "list[Guest | None]" = strawberry.field(default_factory=list)


@strawberry.type
class Person(Guest):
    pass


@strawberry.type
class Robot(Guest):
    pass


def guests() -> list[Guest]:
    friend = Person(id=4)
    return [Person(id=1, friend=friend, friends=[Robot(id=5), None]), Robot(id=2, friends=[friend]), Person(id=3)]


@strawberry.type
class House:
    guests: list[Guest] = strawberry.field(resolver=guests)

    @strawberry.field
    async def guests_of_known_lobbies(self, info: strawberry.Info[Any, Any]) -> list[Guest]:
        await info.context["loaders"].lobbies.load_many([1, 3])
        await info.context["loaders"].signs.load_many([1, 3])
        return guests()

    @strawberry.field
    def crowd(self) -> list[list[Guest | None]]:
        return [[*guests()[:2]], [None, *guests()[2:]]]


HOUSE = schemas(House, Halls, types=[Person, Robot])


@pytest.mark.parametrize(
    ("query", "batches"),
    [
        ("{ guests { hall { id } } }", [[1, 2], [3]]),
        ("{ crowd { hall { id } } }", [[1, 2], [3]]),
        ("{ guests { nextHall { id } hall { id } } }", [[11, 1], [12, 2], [13, 3]]),
        ("{ guests { hall { id } friend { hall { id } } } }", [[1, 4], [2, 3]]),
        ("{ guests { friend { hall { id } } friends { hall { id } } hall { id } } }", [[4, 5], [1, 2], [3]]),
        ("{ guests { ... on Robot { hall { id } } nextHall { id } } }", [[11, 2], [12, 13]]),
        ("{ guests { nextHall { id } door { id } friend { nextHall { id } } } }", [[11, 14], [12, 13]]),
        # The first list leaves room for one key in its batch.
        ("{ one: guests { hall { id } } two: guests { nextHall { id } } }", [[1, 2], [3, 11], [12, 13]]),
        ("{ one: guests { hall { id } } two: guests { nextHall { id } hall { id } } }", [[1, 2], [3, 11], [12, 13]]),
        (
            "{ a: guests { ...on Robot{ third { id } } } b: guests { ...on Person{ nextThird { id } third { id } } } }",
            [[2, 11, 1], [13, 3]],
        ),
    ],
)
async def test_keys_share_a_batch_with_those_that_resolvers_would_ask_for_beside_them(
    query: str, batches: list[list[int]]
) -> None:
    answer = await planned(query, Halls, root=House, types=[Person, Robot], both=HOUSE)
    assert answer.errors == []
    assert [set(keys) for keys in answer.log.keys("halls")] == [set(keys) for keys in batches]
    assert (await ask(HOUSE[1], query, Halls())).log.keys("halls") == batches


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("{ guests { nextDoor { id } door { id } } }", [11, 1, 12, 2, 13, 3]),
        ("{ guests { door { id } friend { door { id } } } }", [1, 4, 2, 3]),
    ],
)
async def test_a_loader_that_answers_one_by_one_gets_its_keys_in_the_order_of_resolvers(
    query: str, keys: list[int]
) -> None:
    answer = await planned(query, Halls, root=House, types=[Person, Robot], both=HOUSE)
    assert answer.errors == []
    assert answer.log.keys("doors") == (await ask(HOUSE[1], query, Halls())).log.keys("doors") == [keys]


async def test_what_is_known_and_has_no_fields_leaves_the_list_planned() -> None:
    query = "{ guestsOfKnownLobbies { signs hall { id } nextHall { id } } }"
    answer = await planned(query, Halls, root=House, types=[Person, Robot], both=HOUSE)
    assert answer.errors == []


async def test_what_is_known_is_followed_before_the_next_object_is_asked() -> None:
    query = "{ guestsOfKnownLobbies { lobby { door { id } } door { id } } }"
    planned, plain = await answers(HOUSE, query, Halls)
    assert planned.errors == []
    assert planned.log.keys("doors") == plain.log.keys("doors") == [[21, 1, 2, 23, 3], [22]]


class Teams(Loaders):
    def __init__(self, delay: float = 1) -> None:
        self.log = Log()
        self.delay = delay

    @dataloader
    async def teams(self, ids: list[int]) -> list["Team"]:
        self.log.batches.append(("teams", ids))
        await asyncio.sleep(self.delay)
        return [Team(id=key) for key in ids]

    @dataloader
    async def streamed(self, ids: list[int]) -> AsyncIterator[tuple[int, "Team"]]:
        for key in ids:
            await asyncio.sleep(0)
            yield key, Team(id=key)

    @dataloader
    async def halls(self, ids: list[int]) -> list["TeamHall"]:
        self.log.batches.append(("halls", ids))
        return [TeamHall(id=key) for key in ids]

    @dataloader
    async def doors(self, ids: list[int]) -> list[Hall]:
        self.log.batches.append(("doors", ids))
        return [Hall(id=key) for key in ids]


def key_of_most(source: Any) -> int:
    if source.id == 9:
        raise LookupError("no key in 9")
    return int(source.id)


@strawberry.type
class TeamHall:
    id: int
    door: Hall = relation(Teams.doors, "id")


@strawberry.type
class Team:
    id: int
    flawed: TeamHall | None = relation(Teams.halls, key_of_most)
    hall: TeamHall = relation(Teams.halls, "id")


@strawberry.type
class Member:
    id: int
    team: Team = relation(Teams.teams, "id")
    streamed: Team = relation(Teams.streamed, "id")
    hall: TeamHall = relation(Teams.halls, "id")


@strawberry.type
class Clubs:
    @strawberry.field
    def first(self) -> list[Member]:
        return [Member(id=1), Member(id=2)]

    @strawberry.field
    def second(self) -> list[Member]:
        return [Member(id=8), Member(id=9), Member(id=10)]


async def test_a_list_that_stops_waiting_asks_below_what_is_there_when_the_others_do() -> None:
    members = "{ hall { id } team { flawed { id } hall { door { id } } } }"
    planned, plain = await answers(schemas(Clubs, Teams), f"{{ first {members} second {members} }}", Teams)
    assert [message for _, message in planned.errors] == ["no key in 9"]
    assert planned.log.keys("doors") == plain.log.keys("doors") == [[1, 2, 8, 9, 10]]


async def test_an_object_without_a_key_does_not_hold_up_what_the_others_ask_for() -> None:
    """Not even where keys are answered one by one: the list waits for the rest of them, and loads ahead."""
    query = "{ second { streamed { flawed { door { id } } } } }"
    planned, plain = await answers(schemas(Clubs, Teams), query, Teams)
    assert [message for _, message in planned.errors] == ["no key in 9"]
    assert planned.log.keys("halls") == plain.log.keys("halls") == [[8, 10]]


# graphql-core leaves the coroutines inside fields that are cancelled before they have started.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_query_that_is_cancelled_at_any_turn_asks_no_more() -> None:
    members = "{ hall { id } team { flawed { id } hall { door { id } } } }"
    schema, _ = schemas(Clubs, Teams)
    for turns in range(40):
        async with Teams(delay=0) as loaders:
            query = schema.execute(f"{{ first {members} second {members} }}", context_value={"loaders": loaders})
            operation = asyncio.ensure_future(query)
            for _ in range(turns):
                await asyncio.sleep(0)
            if operation.done():
                break
            operation.cancel()
            with pytest.raises(asyncio.CancelledError):
                await operation
            asked = list(loaders.log.batches)
            await asyncio.sleep(60)
            assert loaders.log.batches == asked


async def test_a_failure_that_many_fields_share_keeps_its_traceback_short() -> None:
    schema = QuietSchema(Query)
    install(schema)
    async with Backend(broken={"authors": {1}}) as loaders:
        result = await schema.execute("{ posts(n: 200) { editor { id } } }", context_value={"loaders": loaders})
    assert result.errors is not None
    assert len(result.errors) == 200
    traceback = result.errors[-1].original_error.__traceback__  # type: ignore[union-attr]  # there is one
    entries = 0
    while traceback is not None:
        entries, traceback = entries + 1, traceback.tb_next
    assert entries < 10


async def test_bad_arguments_fail_where_they_are() -> None:
    fast, _ = await same(
        "query ($n: Int = 1) { maybePosts { tags comments(first: $n) { id } } }", variable_values={"n": None}
    )
    assert fast.data == {"maybePosts": [None] * 6}
    assert len(fast.errors) == 5


async def test_a_directive_without_its_argument_fails_where_it_is() -> None:
    fast, _ = await same(
        "query ($yes: Boolean = true) { maybePosts { author { id @include(if: $yes) } } }",
        variable_values={"yes": None},
    )
    assert len(fast.errors) == 5


async def test_without_the_loaders_in_the_context_each_field_says_so() -> None:
    for schema in BOTH:
        result = await schema.execute("{ maybePosts(n: 2) { editor { id } } }", context_value={})
        assert result.data == {"maybePosts": [{"editor": None}, {"editor": None}]}
        assert result.errors is not None
        assert "needs an instance of Backend in the context" in result.errors[1].message


def test_without_an_event_loop_each_field_says_so() -> None:
    for schema in BOTH:
        result = schema.execute_sync("{ maybePosts(n: 2) { editor { id } } }", context_value={"loaders": Backend()})
        assert result.data == {"maybePosts": [{"editor": None}, {"editor": None}]}
        assert result.errors is not None
        assert "no event loop runs" in result.errors[0].message


# -- loaders with options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["fresh", "byTwo", "few", "slow", "forgotten", "listed"])
async def test_loaders_of_every_kind_are_asked_as_ever(field: str) -> None:
    for rest in ("{ id }", "{ company { id } }", "{ company { boss { id } } maybeCompany { id } }"):
        fast, slow = await same(f"{{ posts {{ {field} {rest} }} }}")
        assert fast.took == slow.took
        assert sorted(fast.log.batches) == sorted(slow.log.batches)
        assert bool(fast.errors) == (field == "few")


async def test_a_loader_that_is_asked_at_several_levels_without_a_cache_is_asked_as_often() -> None:
    fast, slow = await same("{ posts { fresh { freshSelf { freshSelf { id } } } } }")
    assert fast.log.batches == slow.log.batches
    assert fast.log.count == 3


async def test_a_batch_that_nobody_waits_for_is_cancelled_with_the_query() -> None:
    class Stopped(Backend):
        stopped = False

        @dataloader(abandoned="cancel")
        async def stoppable(self, ids: list[int]) -> list[Any]:
            try:
                await asyncio.sleep(60)
            finally:
                self.stopped = True
            return []

    @strawberry.type
    class Item:
        id: int
        author: Author = relation(Stopped.stoppable, "id")

    @strawberry.type
    class Root:
        @strawberry.field
        def items(self) -> list[Item]:
            return [Item(id=1), Item(id=2)]

    for schema in schemas(Root, Stopped):
        async with Stopped() as loaders:
            query = asyncio.ensure_future(
                schema.execute("{ items { author { id } } }", context_value={"loaders": loaders})
            )
            await asyncio.sleep(30)
            query.cancel()
            await asyncio.wait([query])
            assert query.cancelled()
            await asyncio.sleep(1)
            assert loaders.stopped


# -- parts -----------------------------------------------------------------------------------------------------


async def parts(schema: strawberry.Schema, query: str) -> tuple[Any, Log, float]:
    """The frames of an answer with when they came, the batches, and how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    frames: list[Any] = []
    async with Backend() as loaders:
        result: Any = await schema.execute(query, context_value={"loaders": loaders})
        if not hasattr(result, "subsequent_results"):
            return result.data, loaders.log, loop.time() - began
        frames.append((loop.time() - began, result.initial_result.formatted))
        async for frame in result.subsequent_results:
            parts = {
                key: sorted(map(repr, value)) if isinstance(value, list) else value
                for key, value in frame.formatted.items()
            }
            frames.append((loop.time() - began, parts))
        return frames, loaders.log, loop.time() - began


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    "query",
    [
        "{ posts { id ... @defer { author { company { id } } } } }",
        "{ posts { author { id } ... @defer { author { company { id } } tags } } }",
        "{ posts { author { id } ... @defer { nap(seconds: 3) } } }",
        "{ posts { comments { id ... @defer { author { id } } } } }",
        "{ nap(seconds: 1) ... @defer { posts { author { company { id } } ... @defer { tags } } } }",
        "{ posts { editor { id } ... @defer(if: false) { author { id } } } }",
        "{ posts @stream(initialCount: 2) { author { id } } }",
        "{ posts @stream(initialCount: 2, if: false) { author { id } } }",
        "{ posts { author { id } comments @stream(initialCount: 1) { author { id } } } }",
        "{ posts { tags @stream(initialCount: 0) author { id } } }",
    ],
)
async def test_parts_that_come_later_come_when_they_would(query: str, early: bool) -> None:
    both = schemas(Query, Backend, config=INCREMENTAL, early_execution=early)
    fast, fast_log, fast_time = await parts(both[0], query)
    slow, slow_log, slow_time = await parts(both[1], query)
    assert fast_time <= slow_time
    assert fast_log.count <= slow_log.count
    assert fast == slow


async def test_a_list_in_a_deferred_part_is_planned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    start = Ahead.start

    def spied(self: Ahead, values: Any, *arguments: Any) -> bool:
        started.append(len(values))
        return start(self, values, *arguments)

    monkeypatch.setattr(Ahead, "start", spied)
    both = schemas(Query, Backend, config=INCREMENTAL)
    query = "{ id: __typename ... @defer { posts { author { company { id } } } } }"
    assert (await parts(both[0], query))[:2] == (await parts(both[1], query))[:2]
    assert started == [6]


# -- time ------------------------------------------------------------------------------------------------------

SLOW = (
    "{{ posts(n: 4) {{ {0} author {{ {1} company {{ id }} }} comments {{ author {{ {2} id }} }} tags }} }}",
    "{{ posts(n: 4) {{ box {{ author {{ {1} company {{ boss {{ {2} id }} }} }} }} {0} editor {{ id }} }} }}",
    "{{ posts(n: 4) {{ {0} byTwo {{ {1} slowCompany {{ id }} }} slow {{ slowCompany {{ id }} {2} }} }} }}",
    "{{ rows {{ {0} author {{ company {{ id }} }} }} latePosts {{ {1} thing {{ ... on Author {{ {2} id }} }} }} }}",
)
"""Queries with places above, below and beside relations where a slow field may stand."""

NAPS = ("", "nap(seconds: 2)", "nap(seconds: 11)")


@pytest.mark.thorough
@pytest.mark.parametrize("query", SLOW)
@pytest.mark.parametrize("delays", [{}, {"authors": 3.0, "tags": 9.0}, {"companies": 6.0, "comments": 0.0}])
async def test_no_query_takes_longer_with_the_plan(query: str, delays: dict[str, float]) -> None:
    """Whatever is slow, wherever it stands: not a moment longer, and as many batches."""
    for naps in itertools.product(NAPS, repeat=3):
        fast, plain = await same(query.format(*naps), make=lambda: Backend(delays=delays))
        assert fast.errors == []
        assert (fast.took, fast.log.count) == (plain.took, plain.log.count), naps


# -- size ------------------------------------------------------------------------------------------------------


async def test_many_types_in_many_levels_make_no_more_places_than_the_query_has_fields() -> None:
    made: dict[str, Any] = {}

    class Tree(Loaders):
        log = Log()

        @dataloader
        async def nodes(self, ids: list[int]) -> list[Any]:
            return [made[f"T{key % 25}"](id=key) for key in ids]

    @strawberry.interface
    class Base:
        id: int
        child: "Base" = relation(Tree.nodes, "id")

    for field in Base.__strawberry_definition__.fields:  # type: ignore[attr-defined]  # what `strawberry.type` adds
        if field.type_annotation is not None:
            field.type_annotation.namespace = {"Base": Base}
    made.update({f"T{n}": strawberry.type(type(f"T{n}", (Base,), {})) for n in range(25)})

    @strawberry.type
    class Root:
        @strawberry.field
        def nodes(self) -> list[Base]:
            return [made["T1"](id=n) for n in range(3)]

    both = schemas(Root, Tree, types=list(made.values()))
    query = "id"
    for _ in range(12):
        query = f"id child {{ {query} }}"
    answer, _ = await same(f"{{ nodes {{ {query} }} }}", both, Tree)
    assert answer.errors == []

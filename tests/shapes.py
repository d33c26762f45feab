"""Query shapes: a schema, and queries with the least number of batches that is possible without waiting for a backend.

The test of the shapes holds ours to these numbers, the benchmark `shapes` sets the peers' beside them. The shapes are
written with resolvers by hand, as one would with any loader, and again with relations.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import strawberry
from strawberry import relay
from strawberry.extensions import FieldExtension
from strawberry.permission import BasePermission

from loader import Loaders, Settle, dataloader
from loader.strawberry import relation
from loader.strawberry._extension import install
from tests.answers import INCREMENTAL, Log, QuietSchema

POSTS, AUTHORS = 50, 20


async def find_users(log: Log, ids: list[int]) -> list["User"]:
    """A batch takes time, so that what follows it is another batch."""
    log.batches.append(("users", ids))
    await asyncio.sleep(0.001)
    return [User(id=key, company_id=key % 4) for key in ids]


async def find_companies(log: Log, ids: list[int]) -> list["Company"]:
    log.batches.append(("companies", ids))
    await asyncio.sleep(0.001)
    return [Company(id=key, owner_id=key + 100) for key in ids]


class Shapes(Loaders):
    """Users of companies."""

    window: Settle | None = None

    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def users(self, ids: list[int]) -> list["User"]:
        return await find_users(self.log, ids)

    @dataloader
    async def companies(self, ids: list[int]) -> list["Company"]:
        return await find_companies(self.log, ids)


class Patient(Shapes):
    """The same, with four more turns of patience than the default."""

    @dataloader(window=Settle(turns=9))
    async def users(self, ids: list[int]) -> list["User"]:
        return await find_users(self.log, ids)

    @dataloader(window=Settle(turns=9))
    async def companies(self, ids: list[int]) -> list["Company"]:
        return await find_companies(self.log, ids)


Info = strawberry.Info[dict[str, Any], None]


def users(info: Info) -> Any:
    return info.context["loaders"].users


def companies(info: Info) -> Any:
    return info.context["loaders"].companies


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def permission(pause: int) -> type[BasePermission]:
    class Pausing(BasePermission):
        message = "no"

        async def has_permission(self, source: Any, info: Info, **kwargs: Any) -> bool:
            await turns(pause)
            return True

    return Pausing


class Asking(BasePermission):
    message = "no"

    async def has_permission(self, source: Any, info: Info, **kwargs: Any) -> bool:
        return (await users(info).load(999)) is not None


class Pausing(FieldExtension):
    def __init__(self, pause: int = 0) -> None:
        self.pause = pause

    async def resolve_async(self, next_: Any, source: Any, info: Info, **kwargs: Any) -> Any:
        await turns(self.pause)
        return await next_(source, info, **kwargs)


class Passing(FieldExtension):
    def resolve(self, next_: Any, source: Any, info: Info, **kwargs: Any) -> Any:
        return next_(source, info, **kwargs)

    async def resolve_async(self, next_: Any, source: Any, info: Info, **kwargs: Any) -> Any:
        return await next_(source, info, **kwargs)


@strawberry.interface
class Writer:
    id: int


@strawberry.type
class User(Writer):
    id: int
    company_id: strawberry.Private[int]
    employer: "Company" = relation(Shapes.companies, "company_id")
    friend_by_relation: "User" = relation(Shapes.users, lambda user: user.id + 1)

    @strawberry.field
    def name(self) -> str:
        return f"user {self.id}"

    @strawberry.field
    async def company(self, info: Info) -> "Company":
        return await companies(info).load(self.company_id)  # type: ignore[no-any-return]  # the schema has its type

    @strawberry.field
    def company_def(self, info: Info) -> "Company":
        return companies(info).load(self.company_id)  # type: ignore[no-any-return]  # as above

    @strawberry.field
    async def friend(self, info: Info) -> "User":
        return await users(info).load(self.id + 1)  # type: ignore[no-any-return]  # as above


@strawberry.type
class Company:
    id: int
    owner_id: strawberry.Private[int]
    owner_by_relation: User = relation(Shapes.users, "owner_id")

    @strawberry.field
    async def owner(self, info: Info) -> User:
        return await users(info).load(self.owner_id)  # type: ignore[no-any-return]  # as above


async def is_robot(value: Any, info: Any) -> bool:
    await asyncio.sleep(0)
    return isinstance(value, Robot)


@strawberry.type
class Robot(Writer):
    id: int
    maker_id: strawberry.Private[int]

    @strawberry.field
    async def maker(self, info: Info) -> User:
        return await users(info).load(self.maker_id)  # type: ignore[no-any-return]  # as above


@strawberry.type
class Person(Writer):
    id: int

    @classmethod
    async def is_type_of(cls, value: Any, info: Any) -> bool:
        await asyncio.sleep(0)
        return isinstance(value, Person)

    @strawberry.field
    async def user(self, info: Info) -> User:
        return await users(info).load(self.id)  # type: ignore[no-any-return]  # as above


Robot.__strawberry_definition__.is_type_of = is_robot  # type: ignore[attr-defined]  # it may be async
Either = Annotated[Person | Robot, strawberry.union("Either")]


def loaded(**options: Any) -> Any:
    """An `async def` field of the post's author."""

    async def author(self: Any, info: Info) -> User:
        return await users(info).load(self.author_id)  # type: ignore[no-any-return]  # as above

    return strawberry.field(resolver=author, **options)


def loaded_def(**options: Any) -> Any:
    """The same as a `def` that returns what will be."""

    def author(self: Any, info: Info) -> User:
        return users(info).load(self.author_id)  # type: ignore[no-any-return]  # as above

    return strawberry.field(resolver=author, **options)


@strawberry.type
class Post(relay.Node):
    code: relay.NodeID[int]
    author_id: strawberry.Private[int]
    by_relation: User = relation(Shapes.users, "author_id")
    editor_by_relation: User = relation(Shapes.users, lambda post: post.author_id + 50)
    checked_relation: User = relation(Shapes.users, "author_id", permission_classes=[permission(3)])

    author: User = loaded()
    author_def: User = loaded_def()
    checked: User = loaded(permission_classes=[permission(0)])
    checked_1: User = loaded(permission_classes=[permission(1)])
    checked_3: User = loaded(permission_classes=[permission(3)])
    asked: User = loaded(permission_classes=[Asking])
    checked_def: User = loaded_def(permission_classes=[permission(0)])
    extended: User = loaded(extensions=[Pausing(), Pausing(), Pausing()])
    extended_2: User = loaded(extensions=[Pausing(1), Pausing(1)])
    extended_def: User = loaded_def(extensions=[Pausing()])
    passed_def: User = loaded_def(extensions=[Passing()])

    @classmethod
    async def resolve_nodes(cls, *, info: Any, node_ids: Any, required: bool = False) -> Any:
        numbers = [int(node_id) for node_id in node_ids]
        checked = await info.context["loaders"].users.load_many([number + 500 for number in numbers])
        return [Post(code=user.id, author_id=number) for user, number in zip(checked, numbers, strict=True)]

    @strawberry.field
    async def editor(self, info: Info) -> User:
        return await users(info).load(self.author_id + 50)  # type: ignore[no-any-return]  # as above

    @strawberry.field
    async def slow_author(self, info: Info, most: int, mixed: bool = False) -> User:
        """Half of the posts, or each to another extent, give way to the loop before they load."""
        await turns(self.code % (most + 1) if mixed else most * (self.code % 2))
        return await users(info).load(self.author_id)  # type: ignore[no-any-return]  # as above

    @strawberry.field
    async def three(self, info: Info) -> list[User]:
        load = users(info).load
        return list(await asyncio.gather(load(self.author_id), load(self.author_id + 1), load(self.author_id + 2)))

    @strawberry.field
    async def itself(self) -> "Post":
        return self

    @strawberry.field
    def parts(self) -> list["Post"]:
        return [self, self]

    @strawberry.field
    async def parts_later(self) -> list["Post"]:
        return [self, self]


def all_posts() -> list[Post]:
    return [Post(code=n, author_id=n % AUTHORS) for n in range(POSTS)]


@strawberry.type
class Lists:
    @strawberry.field
    def posts(self) -> list[Post]:
        return all_posts()

    @strawberry.field
    async def posts_later(self) -> list[Post]:
        return all_posts()

    @strawberry.field
    def posts_one_by_one(self) -> list[Post]:
        async def one_by_one() -> AsyncIterator[Post]:
            for post in all_posts():
                yield post

        return one_by_one()  # type: ignore[return-value]  # what graphql-core allows

    @strawberry.field
    def rows(self) -> list[list[Post]]:
        posts = all_posts()
        return [posts[:20], posts[20:], []]

    @strawberry.field
    async def user(self, info: Info, id: int) -> User:  # noqa: A002  # the argument's name
        return await users(info).load(id)  # type: ignore[no-any-return]  # as above

    @strawberry.field
    def primed(self, info: Info) -> list[Post]:
        for n in range(0, AUTHORS, 2):
            users(info).prime(n, User(id=n, company_id=n % 4))
        return all_posts()

    @strawberry.field
    def writers(self) -> list[Writer]:
        return [Robot(id=n, maker_id=n) if n % 2 else Person(id=n) for n in range(POSTS)]

    @strawberry.field
    def either(self) -> list[Either]:
        return [Robot(id=n, maker_id=n) if n % 2 else Person(id=n) for n in range(POSTS)]


@strawberry.type
class Mutation:
    @strawberry.mutation
    async def touch(self, info: Info, id: int) -> User:  # noqa: A002  # the argument's name
        return await users(info).load(id)  # type: ignore[no-any-return]  # as above


def make_schema() -> strawberry.Schema:
    """A schema with all of it, into which nothing is installed. Relay's fields can be in one schema only."""

    @strawberry.type
    class Query(Lists):
        node: relay.Node = relay.node()
        nodes: list[relay.Node] = relay.node()

        @relay.connection(relay.ListConnection[Post])  # type: ignore[untyped-decorator]  # Strawberry's has no types
        def page(self) -> list[Post]:
            return all_posts()

        @relay.connection(relay.ListConnection[Post])  # type: ignore[untyped-decorator]  # Strawberry's has no types
        async def page_later(self) -> list[Post]:
            return all_posts()

        @relay.connection(relay.ListConnection[Post])  # type: ignore[untyped-decorator]  # Strawberry's has no types
        async def page_one_by_one(self) -> AsyncIterator[Post]:
            for post in all_posts():
                yield post

    return QuietSchema(Query, Mutation, types=[Robot, Person], config=INCREMENTAL)


SCHEMA = make_schema()
install(SCHEMA)
EARLY = QuietSchema(Lists, types=[Robot, Person], config=INCREMENTAL)
install(EARLY, early_execution=True)


async def answer(query: str, loaders: Any, schema: strawberry.Schema) -> None:
    """Wait for all of an answer; its first error is raised."""
    result: Any = await schema.execute(query, context_value={"loaders": loaders})
    if hasattr(result, "subsequent_results"):
        async for frame in result.subsequent_results:
            assert "errors" not in repr(frame.formatted)
        result = result.initial_result
    if result.errors:
        raise result.errors[0]


async def batches(query: str, loaders: Shapes, schema: strawberry.Schema = SCHEMA) -> Log:
    async with loaders:
        await answer(query, loaders, schema)
    return loaders.log


@dataclass(frozen=True)
class Shape:
    """A query and the least number of batches.

    Attributes:
        quick: The number with the default of one quiet turn, on loops with lazy tasks; with eager tasks a resolver that
            does not wait is further by the same turn.
        eager: The same with eager tasks.
    """

    query: str
    least: int
    quick: int = 0
    eager: int = 0

    def expected(self, loop_kind: str) -> int:
        return (self.eager if loop_kind == "eager" else 0) or self.quick or self.least


SHAPES = {
    "a": Shape("{ posts { author { name } } }", 1),
    "a2": Shape("{ postsLater { author { name } } }", 1),
    "a3": Shape("{ posts { author { name } } user(id: 77) { name } }", 1),
    "a4": Shape("{ postsOneByOne { author { name } } }", 1),
    "b": Shape("{ posts { author { name company { id } } } }", 2),
    "c1": Shape("{ posts { author { name } parts { author { name } } } }", 1),
    "c2": Shape("{ posts { editor { name } partsLater { author { name } } } }", 1),
    "c3": Shape(
        "{ posts { author { name } itself { editor { name } itself { author { name } itself { editor { id } } } } } }",
        1,
    ),
    "c4": Shape("{ posts { author { name company { owner { name } } } } }", 3),
    "d1": Shape("{ posts { author { name } checked { name } editor { name } } }", 1),
    "d2": Shape("{ posts { editor { name } checked1 { name } } }", 1),
    "d3": Shape("{ posts { editor { name } checked3 { name } } }", 1, 2),
    "d4": Shape("{ posts { editor { name } asked { name } } }", 2),
    "d5": Shape("{ posts { editor { name } checkedDef { name } } }", 1),
    "e1": Shape("{ posts { author { name } extended { name } } }", 1),
    "e2": Shape("{ posts { editor { name } extended2 { name } } }", 1),
    "e3": Shape("{ posts { editor { name } extendedDef { name } } }", 1),
    "e4": Shape("{ posts { editor { name } passedDef { name } authorDef { name } } }", 1),
    "f1": Shape("{ writers { id ... on Person { user { name } } ... on Robot { maker { name } } } }", 1),
    "f2": Shape("{ either { ... on Person { user { name } } ... on Robot { maker { name } } } }", 1),
    "g1": Shape(
        "{ posts { author { company { id } } } page { edges { node { author { company { owner { id } } } } } } }", 3
    ),
    "g2": Shape("{ primed { author { company { id } } } }", 3),
    "h1": Shape("{ posts { slowAuthor(most: 1) { name } } }", 1),
    "h2": Shape("{ posts { slowAuthor(most: 2) { name } } }", 1),
    "h3": Shape("{ posts { slowAuthor(most: 3) { name } } }", 1, 2),
    "h4": Shape("{ posts { slowAuthor(most: 4) { name } } }", 1, 2),
    "h5": Shape("{ posts { slowAuthor(most: 5) { name } } }", 1, 2),
    "h8": Shape("{ posts { slowAuthor(most: 8) { name } } }", 1, 2),
    "h*": Shape("{ posts { slowAuthor(most: 5, mixed: true) { name } } }", 1),
    "i": Shape(
        "{ posts { ...A e: editor { ...N } second: authorDef { ...N } } }"
        " fragment A on Post { author { ...N } first: authorDef { ...N } } fragment N on User { name }",
        1,
    ),
    "k": Shape("{ rows { author { name } } }", 1),
    "l1": Shape("{ posts { authorDef { name } } }", 1),
    "l2": Shape("{ posts { authorDef { name } editor { name } } }", 1),
    "l3": Shape("{ posts { authorDef { name companyDef { id } } editor { company { id } } } }", 2),
    "l4": Shape("{ posts { three { name } editor { name } authorDef { name } } }", 1),
    "m1": Shape("{ page { edges { node { author { name } } } } }", 1),
    "m2": Shape("{ pageLater { edges { node { author { name } } } } }", 1),
    "m3": Shape("{ pageOneByOne { edges { node { author { name } } } } }", 1),
    "m4": Shape(
        "{ "
        + " ".join(
            f'n{n}: node(id: "{relay.to_base64("Post", n)}") {{ ... on Post {{ author {{ name }} }} }}'
            for n in range(10)
        )
        + " }",
        2,
    ),
    "m5": Shape(
        "{ nodes(ids: ["
        + ", ".join(f'"{relay.to_base64("Post", n)}"' for n in range(10))
        + "]) { ... on Post { author { name } } } }",
        2,
    ),
    "n": Shape("mutation { a: touch(id: 1) { name } b: touch(id: 1) { name } c: touch(id: 2) { name } }", 3),
    "j1": Shape("{ posts { code: __typename ... @defer { author { name } } } }", 1),
    "j2": Shape("{ posts { editor { name } ... @defer { author { name } } } }", 2),
    "j3": Shape(
        "{ user(id: 1) { name } ... @defer { posts { author { name } } } ... @defer {"
        " page { edges { node { editor { id } } } } } }",
        2,
    ),
    # silent levels: fields that load nothing and only take turns
    "s1": Shape("{ posts { authorDef { name } itself { editor { id } __typename } } }", 1),
    "s2": Shape(
        "{ posts { authorDef { id } a: itself { b: itself { editor { id } } c: itself { id } } d: itself { id } } }",
        1,
        2,
        1,
    ),
    "s3": Shape(
        "{ posts { authorDef { id } a: itself { a: itself { a: itself { editor { id } }"
        " c: itself { id } } c: itself { id } } c: itself { id } } }",
        1,
        2,
        1,
    ),
    "s4": Shape("{ posts { author { id } parts { parts { parts { editor { id } } } } } }", 1, 2, 1),
    # the same key from everywhere
    "o1": Shape(
        "{ a: user(id: 1) { id } b: user(id: 1) { friend { friend { id } } } c: user(id: 2) { friend { id } } }", 2
    ),
}

RELATIONS = {
    "a": ("{ posts { byRelation { id } } }", 1),
    "a2": ("{ postsLater { byRelation { id } } }", 1),
    "a4": ("{ postsOneByOne { byRelation { id } } }", 1),
    "b": ("{ posts { byRelation { employer { id } } } }", 2),
    "c1": ("{ posts { byRelation { id } parts { editorByRelation { id } } } }", 1),
    "c4": ("{ posts { byRelation { employer { ownerByRelation { id } } } } }", 3),
    "c": (
        "{ posts { byRelation { employer { id } } editorByRelation { id friendByRelation { employer { id } } } } }",
        3,
    ),
    "i": (
        (
            "{ posts { ...A e: editorByRelation { id } } } fragment A on Post { a:"
            " byRelation { id } b: byRelation { id } }"
        ),
        1,
    ),
    "k": ("{ rows { byRelation { id } editorByRelation { id } } }", 1),
    "m1": ("{ page { edges { node { byRelation { employer { id } } } } } }", 2),
    "m2": ("{ pageLater { edges { node { byRelation { employer { id } } } } } }", 2),
    "d3": ("{ posts { checkedRelation { id } } }", 1),
    "j": ("{ posts { byRelation { id } ... @defer { editorByRelation { id } } } }", 2),
}

"""A relation is a field like any other, except that a loader answers it."""

import asyncio
import doctest
import enum
import subprocess
import sys
import types
from collections.abc import Iterator
from operator import getitem
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Generic, TypeVar

import pytest
import strawberry
from strawberry import relay
from strawberry.extensions import FieldExtension
from strawberry.permission import BasePermission
from strawberry.schema.config import StrawberryConfig
from strawberry.schema_directive import Location

import loader.strawberry._relation
from loader import Loaders, dataloader
from loader.strawberry import LoaderExtension, install, relation
from tests.answers import Answer, Log, QuietSchema, ask, schemas

T = TypeVar("T")


@strawberry.enum
class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@strawberry.input
class Filter:
    least: int = 0

    def __hash__(self) -> int:
        return hash(self.least)


class App(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader(default=None)
    async def users(self, ids: list[Any]) -> dict[Any, Any]:
        self.log.batches.append(("users", ids))
        return {key: User(name=f"user {key}") for key in ids if key != "gone"}

    @dataloader(group_by="of")
    async def letters(
        self,
        ids: list[int],
        *,
        first: Annotated[int, strawberry.argument(description="How many.")] = 2,
        size: Size = Size.SMALL,
        where: Filter | None = None,
        with_sender: Annotated[bool | None, strawberry.argument(name="sender", deprecation_reason="Slow.")] = None,
    ) -> list["Letter"]:
        self.log.batches.append(("letters", [first, size, where, with_sender, *ids]))
        return [Letter(of=key, text=f"{size.value} {n}") for key in ids for n in range(first)]

    @dataloader
    async def needy(self, ids: list[int], *, how: str) -> list[str]:
        self.log.batches.append((f"needy {how}", ids))
        return [f"{how} {key}" for key in ids]

    @dataloader
    async def untyped(self, ids, *, how=1):  # type: ignore[no-untyped-def]  # what is tested
        return ids


class Other(Loaders):
    log = Log()

    @dataloader
    async def things(self, ids: list[int]) -> list[str]:
        return [str(key) for key in ids]


@strawberry.type
class User:
    name: str


@strawberry.type
class Letter:
    of: strawberry.Private[int]
    text: str


class Even(BasePermission):
    message = "odd"

    def has_permission(self, source: Any, info: strawberry.Info, **kwargs: Any) -> bool:
        return bool(source.id % 2 == 0)


class EvenLater(BasePermission):
    message = "odd, later"

    async def has_permission(self, source: Any, info: strawberry.Info, **kwargs: Any) -> bool:
        return bool(source.id % 2 == 0)


class Shouting(FieldExtension):
    async def resolve_async(self, next_: Any, source: Any, info: strawberry.Info, **kwargs: Any) -> Any:
        user = await next_(source, info, **kwargs)
        return User(name=user.name.upper())


class Passing(FieldExtension):
    def resolve(self, next_: Any, source: Any, info: strawberry.Info, **kwargs: Any) -> Any:
        return next_(source, info, **kwargs)


class Renaming(FieldExtension):
    """Gives the field an argument of its own, which the loader does not get."""

    def apply(self, field: Any) -> None:
        from strawberry.annotation import StrawberryAnnotation
        from strawberry.types.arguments import StrawberryArgument

        argument = StrawberryArgument("prefix", None, StrawberryAnnotation(str), default="dear ")
        field.arguments = [*field.arguments, argument]

    async def resolve_async(self, next_: Any, source: Any, info: strawberry.Info, **kwargs: Any) -> Any:
        prefix = kwargs.pop("prefix")
        letters = await next_(source, info, **kwargs)
        return [Letter(of=letter.of, text=prefix + letter.text) for letter in letters]


@strawberry.schema_directive(locations=[Location.FIELD_DEFINITION])
class Marked:
    by: str


@strawberry.type
class Item:
    id: int
    part: strawberry.Private[Any] = None
    user: User = relation(App.users, "id")
    nobody: User | None = relation(App.users, lambda item: "gone")
    maybe: User | None = relation(App.users, "part")
    pair: User | None = relation(App.users, ("id", "part"))
    one: User | None = relation(App.users, ("id",))
    made: User | None = relation(App.users, lambda item: item.id * 10)
    letters: list[Letter] = relation(App.letters, "part")
    letters_or_null: list[Letter] | None = relation(App.letters, "part")
    all_letters: list[Letter] = relation(
        App.letters, "id", parameters={"size": Size.LARGE, "where": None, "with_sender": None}
    )
    needy: str | None = relation(App.needy, "id")
    needless: str = relation(App.needy, "id", parameters={"how": "fixed"})
    odd: User | None = relation(App.users, "id", permission_classes=[Even])
    odd_later: User | None = relation(App.users, "id", permission_classes=[EvenLater])
    loud: User = relation(App.users, "id", extensions=[Shouting()])
    loud_and_odd: User | None = relation(App.users, "id", permission_classes=[EvenLater], extensions=[Passing()])
    dear_letters: list[Letter] = relation(App.letters, "id", extensions=[Renaming()])
    described: User | None = relation(
        App.users,
        "id",
        name="who",
        description="Whoever it is.",
        deprecation_reason="Nobody cares.",
        directives=[Marked(by="us")],
        metadata={"secret": 1},
    )


@strawberry.type
class Query:
    @strawberry.field
    def items(self) -> list[Item]:
        return [Item(id=1, part="x"), Item(id=2)]


SCHEMA = QuietSchema(Query)
install(SCHEMA, loaders=App)


async def items(fields: str, schema: strawberry.Schema = SCHEMA, **more: Any) -> Answer:
    return await ask(schema, f"{{ items {{ {fields} }} }}", App(), **more)


async def good(fields: str, **more: Any) -> tuple[list[Any], list[Any]]:
    answer = await items(fields, **more)
    assert answer.errors == []
    return answer.data["items"], answer.log.batches


# -- keys ------------------------------------------------------------------------------------------------------


async def test_a_key_is_an_attribute_several_or_a_function() -> None:
    data, batches = await good("user { name } pair { name } one { name } made { name } nobody { name }")
    assert data[0] == {
        "user": {"name": "user 1"},
        "pair": {"name": "user (1, 'x')"},
        "one": {"name": "user (1,)"},
        "made": {"name": "user 10"},
        "nobody": None,
    }
    assert batches == [("users", [1, 2, (1, "x"), (1,), (2,), 10, 20, "gone"])]


@pytest.mark.parametrize("plan", [True, False])
async def test_a_key_that_is_no_attribute_is_an_error_that_names_the_relation(plan: bool) -> None:
    @strawberry.type
    class Book:
        author: "User | None" = relation(App.users, "authorid")
        editor: "User | None" = relation(App.users, lambda book: book.editorid)

    @strawberry.type
    class Query:
        books: list[Book] = strawberry.field(resolver=lambda: [Book(), Book()])

    schema = QuietSchema(Query)
    install(schema, plan=plan)
    result = await schema.execute("{ books { author { name } editor { name } } }", context_value={"loaders": App()})
    assert result.data == {"books": [{"author": None, "editor": None}] * 2}
    assert sorted({error.message for error in result.errors or []}) == [
        "'Book' object has no attribute 'editorid'",
        "the relation Book.author finds no key 'authorid': 'Book' object has no attribute 'authorid'",
    ]


async def test_a_null_key_asks_nothing() -> None:
    data, batches = await good("maybe { name } pair { name }")
    assert data[1] == {"maybe": None, "pair": None}
    assert batches == [("users", ["x", (1, "x")])]
    data, batches = await good("letters { text } lettersOrNull { text }")
    assert data[1] == {"letters": [], "lettersOrNull": None}
    assert batches == [("letters", [2, Size.SMALL, None, None, "x"])]


async def test_objects_are_read_as_the_schema_reads_them() -> None:
    @strawberry.type
    class Row:
        id: int
        part: strawberry.Private[Any]
        user: "Row" = relation(Rows.rows, "id")
        pair: "Row | None" = relation(Rows.rows, ("id", "part"))
        one: "Row | None" = relation(Rows.rows, ("part",))

    @strawberry.type
    class Root:
        @strawberry.field
        def items(self) -> list[Row]:
            return [{"id": 1, "part": 5}, {"id": 2, "part": None}]  # type: ignore[list-item]  # what getitem is for

    for field in Row.__strawberry_definition__.fields:  # type: ignore[attr-defined]  # what `strawberry.type` adds
        if field.type_annotation is not None:
            field.type_annotation.namespace = {"Row": Row, "strawberry": strawberry, "Any": Any}
    schema = QuietSchema(Root, config=StrawberryConfig(default_resolver=getitem))
    install(schema)
    assert Row.__dataclass_fields__["pair"].default_resolver is getitem
    answer = await ask(schema, "{ items { id user { id user { id } } pair { id } one { id } } }", Rows())
    assert answer.errors == []
    assert answer.data["items"] == [
        {"id": 1, "user": {"id": 2, "user": {"id": 3}}, "pair": {"id": 0}, "one": {"id": 0}},
        {"id": 2, "user": {"id": 3, "user": {"id": 4}}, "pair": None, "one": None},
    ]
    assert answer.log.batches == [("rows", [1, 2, (1, 5), (5,)]), ("rows", [3])]


class Rows(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def rows(self, ids: list[Any]) -> list[dict[str, Any]]:
        self.log.batches.append(("rows", ids))
        return [{"id": key + 1 if isinstance(key, int) else 0, "part": None} for key in ids]


# -- parameters ------------------------------------------------------------------------------------------------


def test_parameters_are_arguments_with_their_types_defaults_and_descriptions() -> None:
    item = SCHEMA.as_str().split("type Item {")[1].split("\n}")[0]
    letters = item.split("letters(")[1].split("): [Letter!]!")[0]
    assert '"""How many."""\n    first: Int! = 2' in letters
    assert "size: Size! = SMALL" in letters
    assert "where: Filter = null" in letters
    assert 'sender: Boolean = null @deprecated(reason: "Slow.")' in letters
    assert "needy(how: String!): String" in item
    assert "needless: String!" in item
    assert "first: Int! = 2): [Letter!]!" in item.split("allLetters(")[1].replace("\n  ", "").replace(
        '"""How many."""', ""
    )


async def test_arguments_reach_the_loader_and_every_set_of_them_has_a_batch() -> None:
    query = """
    query ($n: Int!, $size: Size!, $where: Filter) {
      items {
        one: dearLetters(first: 1) { text }
        two: dearLetters(first: $n, size: $size, where: $where, prefix: "") { text }
        allLetters(first: 1) { text }
        a: needy(how: "a")
        b: needy(how: "b")
        needless
      }
    }
    """
    answer = await ask(SCHEMA, query, App(), variable_values={"n": 2, "size": "LARGE", "where": {"least": 7}})
    assert answer.errors == []
    assert answer.data["items"][0] == {
        "one": [{"text": "dear small 0"}],
        "two": [{"text": "large 0"}, {"text": "large 1"}],
        "allLetters": [{"text": "large 0"}],
        "a": "a 1",
        "b": "b 1",
        "needless": "fixed 1",
    }
    assert sorted(answer.log.batches, key=repr) == sorted(
        [
            ("letters", [1, Size.SMALL, None, None, 1, 2]),
            ("letters", [2, Size.LARGE, Filter(least=7), None, 1, 2]),
            ("letters", [1, Size.LARGE, None, None, 1, 2]),
            ("needy a", [1, 2]),
            ("needy b", [1, 2]),
            ("needy fixed", [1, 2]),
        ],
        key=repr,
    )


async def test_annotations_that_are_text_are_taken_over_too() -> None:
    schema = QuietSchema(textual.Query)
    install(schema, loaders=textual.Texts)
    assert '"""Which tone."""\n    tone: Tone! = LOW' in schema.as_str()
    assert "later: Later = null" in schema.as_str()
    async with textual.Texts() as loaders:
        result = await schema.execute(
            "{ notes { echo(tone: HIGH, later: {word: 3}) next { echo } } }", context_value={"loaders": loaders}
        )
    assert result.errors is None
    assert result.data == {"notes": [{"echo": "high 3 1", "next": {"echo": "low None 2"}}]}


# -- the options of a field ------------------------------------------------------------------------------------


async def test_permissions_are_asked_first() -> None:
    for field, message in (("odd", "odd"), ("oddLater", "odd, later"), ("loudAndOdd", "odd, later")):
        answer = await items(f"{field} {{ name }}")
        assert answer.data["items"] == [{field: None}, {field: {"name": "user 2"}}]
        assert answer.errors == [(["items", 0, field], message)]
        assert answer.log.batches == [("users", [2])]


async def test_extensions_get_values() -> None:
    data, batches = await good("loud { name }")
    assert data == [{"loud": {"name": "USER 1"}}, {"loud": {"name": "USER 2"}}]
    assert batches == [("users", [1, 2])]


def test_names_descriptions_and_directives_are_in_the_schema() -> None:
    assert '"""Whoever it is."""\n  who: User @marked(by: "us") @deprecated(reason: "Nobody cares.")' in SCHEMA.as_str()
    assert Item.__dataclass_fields__["described"].metadata == {"secret": 1}


async def test_names_are_as_they_are_where_the_schema_wants_it_so() -> None:
    schema = QuietSchema(Query, config=StrawberryConfig(auto_camel_case=False))
    install(schema)
    data, _ = await good("letters_or_null { text } all_letters(first: 1) { text }", schema=schema)
    assert data[1]["letters_or_null"] is None


def test_a_relation_is_no_argument_of_the_constructor_and_no_part_of_the_value() -> None:
    assert Item(id=1) == Item(id=1)
    assert repr(Item(id=1)) == "Item(id=1, part=None)"
    with pytest.raises(TypeError, match="user"):
        Item(id=1, user=User(name="somebody"))
    assert not hasattr(Item(id=1), "user")


async def test_exceptions_that_a_schema_makes_values_of_become_values() -> None:
    """Where Strawberry has handlers of exceptions, a relation of theirs is resolved by Strawberry's own resolver."""
    schema = QuietSchema(Query)

    class Converter:
        def __init__(self, converter: Any) -> None:
            self._converter = converter

        def __getattr__(self, name: str) -> Any:
            return getattr(self._converter, name)

        def _get_field_exception_handlers(self, field: Any) -> tuple[Any, ...]:
            return ("a handler",) if field.python_name == "user" else ()

    schema.schema_converter = Converter(schema.schema_converter)  # type: ignore[assignment]  # stands in for it
    fields = schema._schema.type_map["Item"].fields  # type: ignore[attr-defined]  # it is an object type
    resolver = fields["user"].resolve
    install(schema)
    assert fields["user"].resolve is resolver
    assert fields["maybe"].resolve is not resolver
    try:
        data, _ = await good("user { name }", schema=schema)
        assert data[0] == {"user": {"name": "user 1"}}
        assert not fields["user"].extensions["strawberry-definition"].may_be_planned
    finally:
        install(SCHEMA)  # the field is the same in both schemas
    assert fields["user"].extensions["strawberry-definition"].may_be_planned


# -- types of every kind ---------------------------------------------------------------------------------------


async def test_relations_are_inherited_from_types_and_interfaces() -> None:
    @strawberry.interface
    class Owned:
        owner_id: strawberry.Private[int]
        owner: User = relation(App.users, "owner_id")

    @strawberry.type
    class Car(Owned):
        wheels: int = 4

    @strawberry.type
    class Bus(Car):
        driver: User | None = relation(App.users, lambda bus: bus.owner_id + 1)

    @strawberry.type
    class Owner:
        @strawberry.field
        def items(self) -> list[Owned]:
            return [Car(owner_id=1), Bus(owner_id=2)]

    schema = QuietSchema(Owner, types=[Car, Bus])
    install(schema, loaders=App)
    data, batches = await good("owner { name } ... on Bus { driver { name } wheels }", schema=schema)
    assert data == [
        {"owner": {"name": "user 1"}},
        {"owner": {"name": "user 2"}, "driver": {"name": "user 3"}, "wheels": 4},
    ]
    assert batches == [("users", [1, 2, 3])]


async def test_relations_work_in_generic_types_and_to_type_variables() -> None:
    @strawberry.type
    class Box(Generic[T]):
        of: strawberry.Private[int]
        content: T = relation(App.users, "of")
        contents: list[T] = relation(App.letters, "of", parameters={"first": 1})
        odd: T | None = relation(App.users, "of", permission_classes=[Even])

    @strawberry.type
    class Boxes:
        @strawberry.field
        def items(self) -> list[Box[User]]:
            return [Box(of=1), Box(of=2)]

        @strawberry.field
        def letters(self) -> Box[Letter]:
            return Box(of=3)

    schema = QuietSchema(Boxes)
    install(schema, loaders=App)
    data, batches = await good("content { name }", schema=schema)
    assert data == [{"content": {"name": "user 1"}}, {"content": {"name": "user 2"}}]
    assert batches == [("users", [1, 2])]
    answer = await ask(schema, "{ letters { contents(size: LARGE) { text } } }", App())
    assert answer.data == {"letters": {"contents": [{"text": "large 0"}]}}


async def test_relations_work_to_lazy_types() -> None:
    @strawberry.type
    class Holder:
        id: int
        item: Annotated["Item", strawberry.lazy("tests.test_relation")] | None = relation(Lazy.held, "id")
        held: list[Annotated["Item", strawberry.lazy("tests.test_relation")]] = relation(Lazy.held, lambda holder: None)

    @strawberry.type
    class Holders:
        @strawberry.field
        def items(self) -> list[Holder]:
            return [Holder(id=7)]

    schema = QuietSchema(Holders)
    install(schema)
    answer = await ask(schema, "{ items { item { id user { name } } held { id } } }", Lazy())
    assert answer.errors == []
    assert answer.data == {"items": [{"item": {"id": 7, "user": {"name": "user 7"}}, "held": []}]}


class Lazy(App):
    @dataloader
    async def held(self, ids: list[int]) -> list[Item]:
        return [Item(id=key) for key in ids]


async def test_relations_work_in_federation_types() -> None:
    @strawberry.federation.type(keys=["id"])
    class Product:
        id: strawberry.ID
        seller: User = relation(App.users, "id")

        @classmethod
        def resolve_reference(cls, id: strawberry.ID) -> "Product":  # noqa: A002  # the key's name
            return cls(id=id)

    @strawberry.type
    class Products:
        @strawberry.field
        def items(self) -> list[Product]:
            return [Product(id=strawberry.ID("1"))]

    schema = strawberry.federation.Schema(Products)
    install(schema, loaders=App)
    data, _ = await good("id seller { name }", schema=schema)
    assert data == [{"id": "1", "seller": {"name": "user 1"}}]
    query = '{ _entities(representations: [{__typename: "Product", id: "5"}, {__typename: "Product", id: "6"}]) {'
    answer = await ask(schema, query + "... on Product { seller { name } } } }", App())
    assert answer.data["_entities"] == [{"seller": {"name": "user 5"}}, {"seller": {"name": "user 6"}}]
    assert answer.log.batches == [("users", ["5", "6"])]


async def test_relations_work_in_relay_types() -> None:
    @strawberry.type
    class Ship(relay.Node):
        code: relay.NodeID[int]
        captain: User = relation(App.users, "code")

        @classmethod
        def resolve_nodes(cls, *, info: Any, node_ids: Any, required: bool = False) -> Any:
            return [cls(code=int(node_id)) for node_id in node_ids]

    @strawberry.type
    class Fleet:
        node: relay.Node = relay.node()
        nodes: list[relay.Node] = relay.node()

        @relay.connection(relay.ListConnection[Ship])  # type: ignore[untyped-decorator]  # Strawberry's has no types
        def ships(self) -> list[Ship]:
            return [Ship(code=1), Ship(code=2)]

    schema = QuietSchema(Fleet)
    install(schema, loaders=App)
    answer = await ask(schema, "{ ships { edges { node { id captain { name } } } } }", App())
    assert answer.errors == []
    assert answer.log.batches == [("users", [1, 2])]
    ids = [edge["node"]["id"] for edge in answer.data["ships"]["edges"]]
    query = "query ($ids: [ID!]!) { nodes(ids: $ids) { ... on Ship { captain { name } } } }"
    answer = await ask(schema, query, App(), variable_values={"ids": ids})
    assert answer.data == {"nodes": [{"captain": {"name": "user 1"}}, {"captain": {"name": "user 2"}}]}
    assert answer.log.batches == [("users", [1, 2])]


async def test_a_relation_of_the_root_type_is_resolved_on_the_root_value() -> None:
    @strawberry.type
    class Root:
        me: User = relation(App.users, lambda root: root)

    schema = QuietSchema(Root)
    install(schema)
    answer = await ask(schema, "{ me { name } }", App(), root_value=4)
    assert answer.data == {"me": {"name": "user 4"}}


# -- mistakes --------------------------------------------------------------------------------------------------


def test_what_is_no_loader_is_refused_where_it_is_written() -> None:
    async def users(ids: list[int]) -> list[User]:
        return []

    for wrong in (users, "users", App, None, App().users):
        with pytest.raises(TypeError, match=r"relation takes a loader as the attribute of its class"):
            relation(wrong, "id")


def test_what_is_no_key_is_refused_where_it_is_written() -> None:
    for wrong in (None, (), ("a", 1), ["a"], 7, "", ("a", "")):
        with pytest.raises(TypeError, match="the key of a relation is a name, a tuple of names or a function"):
            relation(App.users, wrong)  # type: ignore[arg-type]  # what is tested

    async def key(source: Any) -> int:
        return 1

    with pytest.raises(TypeError, match="must not be async"):
        relation(App.users, key)


@pytest.mark.parametrize("later", [False, True])
async def test_a_key_function_that_returns_an_awaitable_is_refused_where_it_is_called(later: bool) -> None:
    async def key() -> int:
        return 1

    @strawberry.type
    class Reader:
        user: User | None = relation(App.users, lambda _: asyncio.ensure_future(key()) if later else key())

    @strawberry.type
    class Readers:
        @strawberry.field
        def readers(self) -> list[Reader]:
            return [Reader(), Reader()]

    for schema in schemas(Readers, App):
        answer = await ask(schema, "{ readers { user { name } } }", App())
        assert answer.data == {"readers": [{"user": None}, {"user": None}]}
        assert [message for _, message in answer.errors] == [answer.errors[0][1]] * 2
        assert "the key of a relation is known at once" in answer.errors[0][1]
        assert answer.log.count == 0


def test_parameters_that_the_loader_lacks_are_refused_where_they_are_written() -> None:
    with pytest.raises(TypeError, match="the loader users has no parameter 'first'"):
        relation(App.users, "id", parameters={"first": 1})
    with pytest.raises(TypeError, match="the loader users has no parameter "):
        relation(App.users, "id", parameters={1: 1, "y": 2})  # type: ignore[dict-item]  # as untyped code may have it
    with pytest.raises(TypeError, match="the parameter 'how' of the loader untyped needs a type"):
        relation(App.untyped, "id")
    assert relation(App.untyped, "id", parameters={"how": 2})


def test_arguments_of_another_type_are_refused_where_they_are_written() -> None:
    with pytest.raises(TypeError, match=r"relation\(parameters=\) takes a mapping from names .*, not 3"):
        relation(App.users, "id", parameters=3)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match=r"relation\(metadata=\) takes a mapping, as dataclasses.field does, not 3"):
        relation(App.users, "id", metadata=3)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    ("option", "wrong", "message"),
    [
        ("name", 3, "takes a string, not 3"),
        ("description", 3, "takes a string, not 3"),
        ("deprecation_reason", 3, "takes a string, not 3"),
        ("permission_classes", BasePermission, "takes a list, not <class "),
        ("permission_classes", [3], "takes subclasses of BasePermission, not 3"),
        ("permission_classes", [int], "takes subclasses of BasePermission, not <class 'int'>"),
        ("extensions", 3, "takes a list, not 3"),
        ("extensions", [3], "takes instances of FieldExtension, not 3"),
        ("directives", 3, "takes a list, not 3"),
        ("directives", "x", "takes a list, not 'x'"),
    ],
)
def test_options_of_another_type_are_refused_where_they_are_written(option: str, wrong: Any, message: str) -> None:
    with pytest.raises(TypeError) as refused:
        relation(App.users, "id", **{option: wrong})
    assert str(refused.value).startswith(f"relation({option}=) {message}")


def test_a_relation_is_no_decorator() -> None:
    with pytest.raises(TypeError, match="relation is no decorator of "):

        @relation(App.users, "id")  # type: ignore[untyped-decorator]  # what is tested
        def author(self: Any) -> None: ...


def test_an_input_type_has_no_relations() -> None:
    @strawberry.input
    class Wanted:
        user: str = relation(App.needy, "id", parameters={"how": "x"})

    @strawberry.type
    class Wanting:
        @strawberry.field
        def wanted(self, wanted: Wanted) -> int:
            return 1

    with pytest.raises(TypeError, match=r"Wanted\.user is a relation, which an input type cannot have"):
        install(strawberry.Schema(Wanting))


class Lists(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def sums(self, ids: list[int], *, of: list[list[int]], more: list[int] | None = None) -> list[int]:
        self.log.batches.append(("sums", [of, more, *ids]))
        return [key + sum(map(sum, of)) for key in ids]


@strawberry.type
class Summed:
    id: int
    sum: int = relation(Lists.sums, "id")


async def test_a_list_among_the_arguments_is_a_tuple_to_the_loader() -> None:
    @strawberry.type
    class Root:
        @strawberry.field
        def listed(self) -> list[Summed]:
            return [Summed(id=1), Summed(id=2)]

        @strawberry.field
        def one(self) -> Summed:
            return Summed(id=3)

    query = "query ($of: [[Int!]!]!) { listed { sum(of: $of) } one { sum(of: [[1], [2, 3]], more: [4]) } }"
    for schema in schemas(Root, Lists):
        answer = await ask(schema, query, Lists(), variable_values={"of": [[1, 2]]})
        assert answer.data == {"listed": [{"sum": 4}, {"sum": 5}], "one": {"sum": 9}}
        assert sorted(answer.log.batches, key=repr) == [
            ("sums", [((1, 2),), None, 1, 2]),
            ("sums", [((1,), (2, 3)), (4,), 3]),
        ]


def test_what_is_no_schema_is_not_installed() -> None:
    for wrong in ("x", Query, None):
        with pytest.raises(TypeError, match=r"install takes the strawberry.Schema that the view is given, not "):
            install(wrong)  # type: ignore[arg-type]  # what is tested


class Letters(Loaders):
    """Two loaders that subclasses override: with other options, with an async generator, with none."""

    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def words(self, ids: list[int]) -> list[str]:
        self.log.batches.append(("base", ids))
        return [f"base {key}" for key in ids]


class Refusing(Letters):
    @dataloader(max_pending=10)
    async def words(self, ids: list[int]) -> list[str]:
        self.log.batches.append(("refusing", ids))
        return [f"refusing {key}" for key in ids]


class Streaming(Letters):
    @dataloader
    async def words(self, ids: list[int]) -> Any:
        self.log.batches.append(("streaming", ids))
        for key in ids:
            yield key, f"streaming {key}"


class Without(Letters):
    words = None  # type: ignore[assignment]  # what is tested


@strawberry.type
class Page:
    id: int
    word: str = relation(Letters.words, "id")


@strawberry.type
class Book:
    @strawberry.field
    def pages(self) -> list[Page]:
        return [Page(id=1), Page(id=2)]


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize("loaders", [Letters, Refusing, Streaming])
async def test_a_subclass_in_the_context_may_override_the_loader(loaders: type[Letters], plan: bool) -> None:
    schema = QuietSchema(Book)
    install(schema, loaders=loaders, plan=plan)
    name = "base" if loaders is Letters else loaders.__name__.lower()
    answer = await ask(schema, "{ pages { word } }", loaders())
    assert answer.data == {"pages": [{"word": f"{name} 1"}, {"word": f"{name} 2"}]}
    assert answer.log.batches == [(name, [1, 2])]


async def test_something_else_in_the_place_of_a_loader_is_refused() -> None:
    message = "Without.words stands in the place of the loader Letters.words, and is none: declare it with @dataloader"
    with pytest.raises(TypeError) as caught:
        install(QuietSchema(Book), loaders=Without)
    assert str(caught.value) == message
    schema = QuietSchema(Book)
    install(schema)
    answer = await ask(schema, "{ pages { word } }", Without())
    assert answer.errors == [(["pages", 0, "word"], message)]


@strawberry.input
class Unhashable:
    least: int = 0


@strawberry.input
class Hashable(Unhashable):
    __hash__ = object.__hash__


class Least(FieldExtension):
    """Gives the loader something hashable of an input."""

    def resolve(self, next_: Any, source: Any, info: Any, **arguments: Any) -> Any:
        return next_(source, info, only=(arguments["only"][0].least,))


class Filtering(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def words(self, ids: list[int], *, only: strawberry.scalars.JSON | None = None) -> list[str]:
        return ["word" for _ in ids]

    @dataloader
    async def never(self, ids: list[int], *, only: list[Unhashable] | None = None) -> list[str]:
        return ["word" for _ in ids]

    @dataloader
    async def always(self, ids: list[int], *, only: list[Hashable] | None = None) -> list[str]:
        return ["word" for _ in ids]

    @dataloader
    async def named(self, ids: list[int], *, info: str = "") -> list[str]:
        return [info for _ in ids]


def filtered(loader: Any, **more: Any) -> QuietSchema:
    @strawberry.type
    class Filtered:
        id: int
        word: str | None = relation(loader, "id", **more)

    @strawberry.type
    class Root:
        @strawberry.field
        def pages(self) -> list[Filtered]:
            return [Filtered(id=1)]

    return QuietSchema(Root)


async def test_an_argument_that_is_not_hashable_says_what_to_do() -> None:
    schema = filtered(Filtering.words)
    install(schema, loaders=Filtering)
    for argument in ("", "(only: 3)"):
        answer = await ask(schema, f"{{ pages {{ word{argument} }} }}", Filtering())
        assert answer.data == {"pages": [{"word": "word"}]}
    answer = await ask(schema, "{ pages { word(only: {least: 1}) } }", Filtering())
    assert answer.data == {"pages": [{"word": None}]}
    ((path, message),) = answer.errors
    assert path == ["pages", 0, "word"]
    assert message.startswith("Filtering.words: the value of 'only' must be hashable")
    assert message.endswith("is not. Give a tuple instead of a list, or the class of the value a __hash__")


async def test_an_argument_whose_type_is_never_hashable_is_found_when_the_schema_is_installed() -> None:
    with pytest.raises(TypeError) as caught:
        install(filtered(Filtering.never))
    assert str(caught.value) == (
        "the argument 'only' of the relation Filtered.word takes a Unhashable, which is not hashable, and each set of "
        "values has a loader of its own: give Unhashable a __hash__"
    )
    for schema in (filtered(Filtering.always), filtered(Filtering.never, extensions=[Least()])):
        install(schema)
        answer = await ask(schema, "{ pages { word(only: [{least: 1}]) } }", Filtering())
        assert answer.data == {"pages": [{"word": "word"}]}


async def test_a_value_that_is_given_to_a_parameter_is_hashable_too() -> None:
    with pytest.raises(TypeError, match=r"gives 'only' of the loader words a value that is not hashable, \{'a': 1\}"):
        filtered(Filtering.words, parameters={"only": {"a": 1}})
    schema = filtered(Filtering.words, parameters={"only": [1, [2]]})
    install(schema)
    assert (await ask(schema, "{ pages { word } }", Filtering())).data == {"pages": [{"word": "word"}]}


async def test_an_argument_has_no_name_that_strawberry_needs_itself() -> None:
    with pytest.raises(TypeError, match="the parameter 'info' of the loader named cannot become an argument"):
        filtered(Filtering.named)
    schema = filtered(Filtering.named, parameters={"info": "this"})
    install(schema)
    assert (await ask(schema, "{ pages { word } }", Filtering())).data == {"pages": [{"word": "this"}]}


def test_a_loader_that_is_not_in_the_context_is_found_when_the_schema_is_installed() -> None:
    schema = QuietSchema(Query)
    with pytest.raises(TypeError) as caught:
        install(schema, loaders=Other)
    assert str(caught.value) == (
        "the relation Item.user asks App.users, but the loaders in the context are Other, which is no App"
    )
    install(schema, loaders=Lazy)  # a subclass has them too
    for wrong in (App(), dict, "App"):
        with pytest.raises(TypeError, match=r"install\(loaders=\) takes a subclass of Loaders"):
            install(schema, loaders=wrong)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("context", [{}, {"loaders": Other()}, types.SimpleNamespace(loaders=None), None])
async def test_a_loader_that_is_not_in_the_context_is_an_error_of_the_field(context: Any) -> None:
    result = await SCHEMA.execute("{ items { maybe { name } } }", context_value=context)
    assert result.errors is not None
    assert "the loader App.users needs an instance of App in the context" in result.errors[0].message


async def test_a_context_may_be_an_object() -> None:
    async with App() as loaders:
        context = types.SimpleNamespace(loaders=loaders)
        result = await SCHEMA.execute("{ items { user { name } } }", context_value=context)
        assert result.errors is None


async def test_a_schema_without_install_says_so() -> None:
    schema = QuietSchema(Query)
    answer = await items("odd { name }", schema=schema)
    assert answer.errors[1][1].endswith("call loader.strawberry.install(schema)")


async def test_the_extension_installs_it_too() -> None:
    schema = QuietSchema(Query, extensions=[LoaderExtension])
    data, _ = await good("user { name }", schema=schema)
    assert data[0] == {"user": {"name": "user 1"}}


# -- types for type checkers, and the example ------------------------------------------------------------------

TYPED = dedent(
    """
    import strawberry
    from loader import Loaders, dataloader
    from loader.strawberry import relation

    class AppLoaders(Loaders):
        @dataloader
        async def airlines(self, codes: list[str], *, first: int = 1) -> "list[Airline]":
            return [Airline(name=code) for code in codes]

    @strawberry.type
    class Airline:
        name: str

    @strawberry.type
    class Flight:
        carrier_code: strawberry.Private[str]
        hour: strawberry.Private[int]
        carrier: Airline = relation(AppLoaders.airlines, "carrier_code")
        maybe: Airline | None = relation(AppLoaders.airlines, ("carrier_code", "hour"), parameters={"first": 2})
        others: list[Airline] = relation(AppLoaders.airlines, lambda flight: flight.hour, description="Others.")

    flight = Flight(carrier_code="UA", hour=1)
    name: str = flight.carrier.name
    """
)


@pytest.mark.thorough  # by the type checkers
@pytest.mark.parametrize(
    "checker", [["mypy", "--strict", "--no-incremental"], ["pyright", "--pythonpath", sys.executable]]
)
def test_type_checkers_take_the_class_as_it_stands(checker: list[str], tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    result = subprocess.run(
        [sys.executable, "-m", *checker, "typed.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_example_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("relation_example")
    monkeypatch.setitem(sys.modules, "relation_example", module)
    text = loader.strawberry._relation.relation.__doc__
    assert text is not None
    test = doctest.DocTestParser().get_doctest(text, vars(module), "relation", None, None)
    assert doctest.DocTestRunner().run(test).failed == 0


textual: Any = None


@pytest.fixture(scope="module", autouse=True)
def _textual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module whose annotations are text, as `from __future__ import annotations` makes them."""
    import importlib.util

    global textual
    path = tmp_path_factory.mktemp("modules") / "textual_relations.py"
    path.write_text(
        dedent(
            """
            from __future__ import annotations
            import enum
            from typing import Annotated, Any
            import strawberry
            from loader import Loaders, dataloader
            from loader.strawberry import relation

            @strawberry.enum
            class Tone(enum.Enum):
                LOW = "low"
                HIGH = "high"

            class Texts(Loaders):
                @dataloader
                async def echoes(
                    self,
                    ids: list[int],
                    *,
                    tone: Annotated[Tone, strawberry.argument(description="Which tone.")] = Tone.LOW,
                    later: Later | None = None,
                ) -> list[str]:
                    return [f"{tone.value} {later and later.word} {key}" for key in ids]

                @dataloader
                async def notes(self, ids: list[int]) -> list[Note]:
                    return [Note(id=key) for key in ids]

            @strawberry.type
            class Note:
                id: int
                echo: str = relation(Texts.echoes, "id")
                next: Note | None = relation(Texts.notes, lambda note: note.id + 1)

            @strawberry.input
            class Later:
                word: int
                __hash__ = object.__hash__

            @strawberry.type
            class Query:
                @strawberry.field
                def notes(self) -> list[Note]:
                    return [Note(id=1)]
            """
        )
    )
    spec = importlib.util.spec_from_file_location("textual_relations", path)
    assert spec is not None
    assert spec.loader is not None
    textual = importlib.util.module_from_spec(spec)
    sys.modules["textual_relations"] = textual
    spec.loader.exec_module(textual)
    yield
    del sys.modules["textual_relations"]


class Down(Loaders):
    @dataloader
    async def users(self, ids: list[int]) -> list["User"]:
        raise ConnectionError("the database is down")


@strawberry.type
class Shelf:
    id: int
    user: "User" = relation(Down.users, "id")
    another: "User" = relation(Down.users, lambda shelf: shelf.id + 10)


@strawberry.type
class Shelves:
    @strawberry.field
    def shelves(self) -> list[Shelf]:
        return [Shelf(id=1), Shelf(id=2)]


# What graphql-core had not begun when it was cancelled is reported as "never awaited", whatever the resolvers are.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("plan", [True, False])
async def test_a_batch_that_fails_after_its_operation_was_cancelled_is_not_reported(plan: bool, steps: int) -> None:
    schema = strawberry.Schema(Shelves)
    install(schema, plan=plan)
    async with Down() as loaders:
        query = schema.execute("{ shelves { user { name } another { name } } }", context_value={"loaders": loaders})
        operation = asyncio.create_task(query)
        for _ in range(steps):
            await asyncio.sleep(0)
        operation.cancel()
        await asyncio.wait([operation])

"""A relation to a Relay connection: Strawberry's own answers, with one call of the loader for all parents."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Sequence  # noqa: TC003  # Strawberry reads annotations when the program runs
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Generic

import pytest
import strawberry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from strawberry import relay
from strawberry.extensions import FieldExtension
from strawberry.permission import BasePermission
from strawberry.relay.utils import from_base64, to_base64
from strawberry.schema.config import StrawberryConfig

from loader import DataLoader, Loaders, dataloader
from loader.sqlalchemy import Page, grouped_pages
from loader.strawberry import install, relation
from tests import loops
from tests.answers import INCREMENTAL, Answer, Log, QuietSchema, answers, ask, schemas
from tests.postgres import postgres  # noqa: F401  # a fixture, found by its name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests import postgres as server

MOST = 4
CONFIG = StrawberryConfig(relay_max_results=MOST)


def cursor(position: int) -> str:
    return to_base64("arrayconnection", position)


def literal(**arguments: Any) -> str:
    """Arguments as GraphQL text, in parentheses; those that are None are left out."""
    given = [f"{name}: {value!r}".replace("'", '"') for name, value in arguments.items() if value is not None]
    return f"({', '.join(given)})" if given else ""


# -- the schema ------------------------------------------------------------------------------------------------


class Sky(Loaders):
    """Airports with as many departures as their code is long, each with a carrier.

    Attributes:
        changes: What a loader gives for a key in place of what it would.
    """

    def __init__(self, **changes: Any) -> None:
        self.log = Log()
        self.asked: list[dict[str, Any]] = []
        self.changes = changes

    async def page(self, codes: list[str], **slices: Any) -> dict[str, Any]:
        self.log.batches.append(("pages", codes))
        self.asked.append(slices)
        await asyncio.sleep(1)
        return {code: self.changes.get(code, page_of(flights(code), **slices)) for code in codes}

    @dataloader
    async def departures(
        self,
        codes: list[str],
        *,
        first: int | None = None,
        after: int | None = None,
        last: int | None = None,
        before: int | None = None,
    ) -> dict[str, Page[Flight]]:
        return await self.page(codes, first=first, after=after, last=last, before=before)

    @dataloader
    async def counted(
        self, codes: list[str], *, first: int = 2, after: int | None = None, carrier: str = "any", total: bool = False
    ) -> dict[str, Page[Flight]]:
        """Pages of two unless a client says otherwise, forwards only, counted on demand."""
        return await self.page(codes, first=first, after=after, carrier=carrier, total=total)

    @dataloader
    async def lists(self, codes: list[str]) -> dict[str, list[Flight]]:
        self.log.batches.append(("lists", codes))
        await asyncio.sleep(1)
        return {code: self.changes.get(code, flights(code)) for code in codes}

    @dataloader
    async def some(self, codes: list[str], *, carrier: str = "any") -> dict[str, tuple[Flight, ...]]:
        self.log.batches.append(("some", [*codes, carrier]))
        return {code: tuple(flight for flight in flights(code) if flight.carrier_code != carrier) for code in codes}

    @dataloader
    async def vehicles(self, codes: list[str]) -> dict[str, list[Vehicle]]:
        return {code: [Bus(number=1), Train(number=2)] for code in codes}

    @dataloader
    async def carriers(self, codes: list[str]) -> dict[str, Carrier]:
        self.log.batches.append(("carriers", codes))
        await asyncio.sleep(1)
        return {code: Carrier(code=code) for code in codes}


def page_of(
    rows: Sequence[Any],
    *,
    first: int | None = None,
    after: int | None = None,
    last: int | None = None,
    before: int | None = None,
    total: bool = False,
    **rest: Any,
) -> Page[Any]:
    start = 0 if after is None else after + 1
    kept = list(enumerate(rows))[start:before]
    if first is not None:
        kept = kept[:first]
    if last is not None:
        kept = kept[max(0, len(kept) - last) :]
    return Page(
        rows=tuple(row for _, row in kept),
        offset=kept[0][0] if kept else start,
        has_previous=bool(kept) and kept[0][0] > 0,
        has_next=bool(kept) and kept[-1][0] < len(rows) - 1,
        total=len(rows) if total else None,
    )


@strawberry.type
class Carrier:
    code: str
    fleet: relay.ListConnection[Flight] = relation(Sky.departures, "code")


@strawberry.type
class Flight(relay.Node):
    number: relay.NodeID[int]
    carrier_code: strawberry.Private[str]
    carrier: Carrier = relation(Sky.carriers, "carrier_code")


def flights(code: str) -> list[Flight]:
    return [Flight(number=number, carrier_code="UA" if number % 2 else "AA") for number in range(len(code))]


@strawberry.type(name="Counted")
class Counted(relay.ListConnection[relay.NodeType]):
    total_count: int | None = None
    note: str = "as ever"


class Refused(BasePermission):
    message = "not for you"

    def has_permission(self, source: Any, info: Any, **kwargs: Any) -> bool:
        return bool(source.code != "EWR")


class Slowly(BasePermission):
    async def has_permission(self, source: Any, info: Any, **kwargs: Any) -> bool:
        await asyncio.sleep(0)
        return True


@strawberry.type
class FlightList(relay.ListConnection[Flight]):
    """One for flights only."""


@strawberry.interface
class Vehicle(relay.Node):
    number: relay.NodeID[int]
    carrier: Carrier = relation(Sky.carriers, lambda vehicle: f"of {vehicle.number}")


@strawberry.type
class Bus(Vehicle):
    seats: int = 50


@strawberry.type
class Train(Vehicle):
    pass


@strawberry.interface
class Place:
    code: str | None
    departures: relay.ListConnection[Flight] = relation(Sky.departures, "code")


@strawberry.type
class Port(Place):
    maybe: relay.Connection[Flight] | None = relation(Sky.departures, "code")
    counted: Counted[Flight] = relation(Sky.counted, "code", max_results=3)
    cut: Counted[Flight] = relation(Sky.lists, "code")
    maybe_cut: relay.ListConnection[Flight] | None = relation(Sky.lists, "code")
    some: relay.ListConnection[Flight] = relation(Sky.some, "code")
    vehicles: relay.ListConnection[Vehicle] = relation(Sky.vehicles, "code")
    refused: relay.ListConnection[Flight] | None = relation(Sky.departures, "code", permission_classes=[Refused])
    slowly: relay.ListConnection[Flight] = relation(Sky.departures, "code", permission_classes=[Slowly])
    its_own: FlightList | None = relation(Sky.lists, "code")
    two: relay.ListConnection[Flight] = relation(Sky.departures, "code", parameters={"first": 2})
    ending: relay.ListConnection[Flight] = relation(
        Sky.departures, "code", parameters={"first": None, "after": None, "last": 1, "before": None}
    )


@strawberry.type
class Query:
    codes: strawberry.Private[Sequence[str | None]]

    @strawberry.field
    def ports(self) -> list[Port]:
        return [Port(code=code) for code in self.codes]

    @strawberry.field
    def places(self) -> list[Place]:
        return [Port(code=code) for code in self.codes]

    @strawberry.field
    def port(self) -> Port:
        return Port(code=self.codes[0])

    @relay.connection(relay.ListConnection[Flight])  # type: ignore[untyped-decorator]  # Strawberry's is not typed
    def reference(self) -> list[Flight]:
        return flights(self.codes[0] or "")


BOTH = schemas(Query, Sky, types=[Port, Bus, Train], config=CONFIG)
NODES = "{ edges { node { id } } }"


CODES: Sequence[str | None] = ("JFK", "EWR", "JFK")


async def asked(
    query: str, make: Callable[[], Loaders] = Sky, codes: Sequence[str | None] = CODES
) -> tuple[Answer, Answer]:
    """The answers with a plan and without, which are the same."""
    return await answers(BOTH, query, make, root_value=Query(codes=codes))


async def alone(schema: strawberry.Schema, query: str, loaders: Loaders) -> Answer:
    """The answer of one schema."""
    return await ask(schema, query, loaders, root_value=Query(codes=CODES))


def positions(connection: Any) -> list[int]:
    return [int(from_base64(edge["cursor"])[1]) for edge in connection["edges"]]


# -- what the schema says --------------------------------------------------------------------------------------


def field_of(graphql_type: str, field: str, schema: strawberry.Schema = BOTH[0]) -> Any:
    types: Any = schema._schema.type_map
    return types[graphql_type].fields[field]


def arguments_of(graphql_type: str, field: str) -> dict[str, Any]:
    arguments: dict[str, Any] = field_of(graphql_type, field).args
    return arguments


def test_a_connection_has_the_arguments_of_strawberry_s_own() -> None:
    own, ours = arguments_of("Query", "reference"), arguments_of("Port", "departures")
    assert list(ours) == list(own) == ["before", "after", "first", "last"]
    for name, argument in ours.items():
        assert str(argument.type) == str(own[name].type)
        assert argument.default == own[name].default
        if name != "last":  # theirs says what `after` is
            assert argument.description == own[name].description


def test_arguments_are_those_that_the_loader_takes_and_no_others() -> None:
    assert list(arguments_of("Port", "counted")) == ["carrier", "after", "first"]
    assert list(arguments_of("Port", "some")) == ["carrier", "before", "after", "first", "last"]
    assert list(arguments_of("Port", "two")) == ["before", "after", "last"]
    assert list(arguments_of("Port", "ending")) == []


def test_the_type_says_whether_a_connection_may_be_null() -> None:
    shown = {name: str(field_of("Port", name).type) for name in ("departures", "maybe", "counted", "itsOwn")}
    assert shown == {
        "departures": "FlightConnection!",
        "maybe": "FlightConnection",
        "counted": "FlightCounted!",
        "itsOwn": "FlightList",
    }


def test_a_second_schema_has_the_same_arguments() -> None:
    schema = strawberry.Schema(Query, types=[Port, Bus, Train], config=CONFIG)
    assert schema.as_str() == BOTH[0].as_str()


# -- what a client gets ----------------------------------------------------------------------------------------


async def test_one_call_answers_all_parents_and_one_more_what_is_below_them() -> None:
    query = "{ ports { departures(first: 2) { edges { cursor node { id carrier { code } } } } } }"
    planned, plain = await asked(query)
    assert planned.log.batches == plain.log.batches == [("pages", ["JFK", "EWR"]), ("carriers", ["AA", "UA"])]
    edges = planned.data["ports"][0]["departures"]["edges"]
    assert edges == [
        {"cursor": cursor(0), "node": {"id": to_base64("Flight", 0), "carrier": {"code": "AA"}}},
        {"cursor": cursor(1), "node": {"id": to_base64("Flight", 1), "carrier": {"code": "UA"}}},
    ]


async def test_the_plan_loads_ahead_through_edges_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one: list[str] = []
    load = DataLoader.load

    def recorded(self: DataLoader[Any, Any], key: Any) -> Any:
        one_by_one.append(key)
        return load(self, key)

    monkeypatch.setattr(DataLoader, "load", recorded)
    query = "{ ports { departures(first: 2) { edges { node { id carrier { code } } } pageInfo { hasNextPage } } } }"
    await alone(BOTH[0], query, Sky())
    assert one_by_one == []
    await alone(BOTH[1], query, Sky())
    assert one_by_one == ["JFK", "EWR", "JFK", *["AA", "UA"] * 3]


async def test_page_info_tells_where_the_page_is() -> None:
    info = "pageInfo { hasPreviousPage hasNextPage startCursor endCursor }"
    query = f'{{ port {{ a: departures(first: 1) {{ {info} }} b: departures(after: "{cursor(1)}") {{ {info} }} }} }}'
    planned, _ = await asked(query)
    assert planned.data["port"] == {
        "a": {
            "pageInfo": {
                "hasPreviousPage": False,
                "hasNextPage": True,
                "startCursor": cursor(0),
                "endCursor": cursor(0),
            }
        },
        "b": {
            "pageInfo": {
                "hasPreviousPage": True,
                "hasNextPage": False,
                "startCursor": cursor(2),
                "endCursor": cursor(2),
            }
        },
    }


async def test_each_set_of_arguments_is_a_call() -> None:
    query = f"""{{ ports {{
        a: departures(first: 1) {NODES} b: departures(first: 1) {NODES} c: departures(last: 1) {NODES}
    }} }}"""
    planned, _ = await asked(query)
    assert planned.log.keys("pages") == [["JFK", "EWR"]] * 2
    assert planned.data["ports"][0]["a"] == planned.data["ports"][0]["b"] != planned.data["ports"][0]["c"]


async def test_a_whole_list_is_loaded_once_for_all_sets_of_arguments() -> None:
    edges = "{ edges { cursor node { carrier { code } } } }"
    query = f"{{ ports {{ a: cut(first: 1) {edges} b: cut(last: 2) {edges} maybeCut {edges} }} }}"
    planned, plain = await asked(query)
    assert planned.log.batches == plain.log.batches == [("lists", ["JFK", "EWR"]), ("carriers", ["AA", "UA"])]
    assert [positions(planned.data["ports"][1][name]) for name in ("a", "b", "maybeCut")] == [[0], [1, 2], [0, 1, 2]]


async def test_other_parameters_of_the_loader_are_arguments_as_ever() -> None:
    query = f'{{ ports {{ some(first: 1, carrier: "AA") {NODES} counted(carrier: "UA") {NODES} }} }}'
    sky = Sky()
    planned = await alone(BOTH[0], query, sky)
    assert planned.data["ports"][0]["some"] == {"edges": [{"node": {"id": to_base64("Flight", 1)}}]}
    assert ("some", ["JFK", "EWR", "AA"]) in planned.log.batches
    assert sky.asked == [{"first": 2, "after": None, "carrier": "UA", "total": False}]
    await asked(query)


async def test_connections_in_connections_take_a_call_for_each_level() -> None:
    query = "{ ports { departures { edges { node { carrier { fleet(first: 1) { edges { node { id } } } } } } } } }"
    planned, plain = await asked(query)
    expected = [("pages", ["JFK", "EWR"]), ("carriers", ["AA", "UA"]), ("pages", ["AA", "UA"])]
    assert planned.log.batches == plain.log.batches == expected


async def test_interfaces_and_fragments_are_no_different() -> None:
    query = """
        { places { ...page ... on Port { itsOwn(last: 1) { edges { cursor } } } } }
        fragment page on Place { departures(first: 1) { edges { node { ... on Node { id } carrier { code } } } } }
    """
    planned, _ = await asked(query)
    assert planned.log.batches == [("pages", ["JFK", "EWR"]), ("lists", ["JFK", "EWR"]), ("carriers", ["AA"])]
    assert positions(planned.data["places"][0]["itsOwn"]) == [2]


async def test_nodes_may_be_of_an_interface() -> None:
    query = """{ ports { vehicles { edges { node {
        id ... on Bus { seats carrier { code } } ... on Train { carrier { name: code } }
    } } } } }"""
    planned, _ = await asked(query)
    assert planned.log.batches == [("carriers", ["of 1", "of 2"])]
    bus, train = (edge["node"] for edge in planned.data["ports"][0]["vehicles"]["edges"])
    assert bus == {"id": to_base64("Bus", 1), "seats": 50, "carrier": {"code": "of 1"}}
    assert train == {"id": to_base64("Train", 2), "carrier": {"name": "of 2"}}


async def test_a_key_that_is_none_asks_nothing() -> None:
    info = "pageInfo { hasNextPage hasPreviousPage startCursor endCursor }"
    query = f"""{{ ports {{
        departures {{ edges {{ cursor }} {info} }} cut {{ totalCount edges {{ cursor }} }}
        maybe {{ edges {{ cursor }} }}
    }} }}"""
    planned, _ = await asked(query, codes=[None])
    assert planned.log.batches == []
    nothing = {"hasNextPage": False, "hasPreviousPage": False, "startCursor": None, "endCursor": None}
    expected = {"departures": {"edges": [], "pageInfo": nothing}, "cut": {"totalCount": 0, "edges": []}, "maybe": None}
    assert planned.data == {"ports": [expected]}
    planned, _ = await asked(query, codes=["JFK", None])
    assert planned.log.batches == [("pages", ["JFK"]), ("lists", ["JFK"])]
    assert planned.data["ports"][1] == expected


async def test_a_loader_that_has_nothing_for_a_key_is_a_key_that_is_none() -> None:
    query = "{ ports { departures { edges { cursor } } maybe { edges { cursor } } maybeCut { edges { cursor } } } }"
    planned, _ = await asked(query, lambda: Sky(EWR=None))
    assert planned.data["ports"][1] == {"departures": {"edges": []}, "maybe": None, "maybeCut": None}


async def test_an_exception_for_a_key_is_the_error_of_its_field() -> None:
    query = "{ ports { maybe { edges { node { carrier { code } } } } } }"
    planned, _ = await asked(query, lambda: Sky(EWR=ValueError("closed")))
    assert planned.data["ports"][1] == {"maybe": None}
    assert planned.errors == [(["ports", 1, "maybe"], "closed")]
    assert len(planned.data["ports"][2]["maybe"]["edges"]) == 3


async def test_permissions_are_asked_before_the_loader_is() -> None:
    edges = "{ edges { cursor } }"
    planned, _ = await asked(f"{{ ports {{ refused(first: 1) {edges} }} }}")
    assert planned.log.keys("pages") == [["JFK"]]
    assert planned.errors == [(["ports", 1, "refused"], "not for you")]
    planned, _ = await asked(f"{{ ports {{ slowly(first: 1) {edges} }} }}")
    assert planned.log.keys("pages") == [["JFK", "EWR"]]
    assert positions(planned.data["ports"][0]["slowly"]) == [0]


async def test_a_deferred_page_is_loaded_for_all_parents() -> None:
    schema = QuietSchema(Query, types=[Port, Bus, Train], config=INCREMENTAL)
    install(schema, loaders=Sky)
    async with Sky() as loaders:
        result: Any = await schema.execute(
            "{ ports { code ... @defer { counted { ... @defer { totalCount } edges { cursor } } } } }",
            context_value={"loaders": loaders},
            root_value=Query(codes=CODES),
        )
        async for _ in result.subsequent_results:
            pass
        assert loaders.asked == [{"first": 2, "after": None, "carrier": "any", "total": True}]


# -- limits and cursors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first": -1}, "Argument 'first' must be a non-negative integer."),
        ({"last": -1}, "Argument 'last' must be a non-negative integer."),
        ({"first": 5}, "Argument 'first' cannot be higher than 4."),
        ({"last": 5}, "Argument 'last' cannot be higher than 4."),
        ({"after": to_base64("Flight", 1)}, "Argument 'after' contains a non-existing value."),
        ({"before": to_base64("Flight", 1)}, "Argument 'before' contains a non-existing value."),
    ],
)
async def test_what_strawberry_refuses_is_refused_alike(arguments: dict[str, Any], message: str) -> None:
    given = literal(**arguments)
    for name in ("departures", "cut", "reference"):
        query = f"{{ {name}{given} {NODES} }}" if name == "reference" else f"{{ ports {{ {name}{given} {NODES} }} }}"
        planned, _ = await asked(query, codes=["JFK"])
        assert [each for _, each in planned.errors] == [message]
        assert planned.log.batches == []


@pytest.mark.parametrize("text", ["nonsense", "é", cursor(-1), to_base64("arrayconnection", "x"), cursor(10**19)])
async def test_a_cursor_that_is_none_is_a_clear_error(text: str) -> None:
    planned, _ = await asked(f'{{ ports {{ maybe(after: "{text}") {NODES} }} }}')
    assert {message for _, message in planned.errors} == {"Argument 'after' contains a non-existing value."}


async def test_an_empty_cursor_and_null_are_as_nothing() -> None:
    query = '{ port { departures(first: null, after: "", last: 2, before: null) { edges { cursor } } } }'
    planned, _ = await asked(query)
    assert positions(planned.data["port"]["departures"]) == [1, 2]


async def test_a_page_is_never_larger_than_the_limit() -> None:
    edges = "{ edges { cursor } pageInfo { hasNextPage } }"
    query = f'{{ port {{ departures {edges} counted {edges} cut(before: "{cursor(90)}") {edges} }} }}'
    planned, _ = await asked(query, codes=["very long"])
    port = planned.data["port"]
    assert [positions(port[name]) for name in ("departures", "cut")] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert positions(port["counted"]) == [0, 1]  # the loader's own default
    assert all(connection["pageInfo"]["hasNextPage"] for connection in port.values())
    planned, _ = await asked(f"{{ port {{ counted(first: 4) {edges} }} }}")
    assert [message for _, message in planned.errors] == ["Argument 'first' cannot be higher than 3."]


async def test_parameters_that_the_relation_fixes_are_the_loader_s() -> None:
    query = "{ port { two { edges { cursor } } ending { edges { cursor } } } }"
    planned, _ = await asked(query)
    assert [positions(planned.data["port"][name]) for name in ("two", "ending")] == [[0, 1], [2]]
    planned, _ = await asked("{ ports { ending { edges { cursor } } } }")
    assert planned.log.keys("pages") == [["JFK", "EWR"]]


# -- the total count -------------------------------------------------------------------------------------------


async def test_a_list_is_counted_where_a_query_asks_for_the_count() -> None:
    query = """
        query ($no: Boolean = false) { ports {
            a: counted { totalCount note edges { cursor } }
            b: counted { edges { cursor } __typename }
            c: counted { ...count }
            d: counted(first: 1) { totalCount @include(if: $no) }
        } }
        fragment count on FlightCounted { all: totalCount }
    """
    for schema in BOTH:
        sky = Sky()
        answer = await alone(schema, query, sky)
        assert not answer.errors
        assert [(slices["first"], slices["total"]) for slices in sky.asked] == [(2, True), (2, False), (1, False)]
        port = answer.data["ports"][0]
        assert (port["a"]["totalCount"], port["a"]["note"], port["c"]["all"]) == (3, "as ever", 3)


async def test_a_whole_list_is_counted_anyway() -> None:
    planned, _ = await asked("{ port { cut(first: 1) { totalCount } } }")
    assert planned.data == {"port": {"cut": {"totalCount": 3}}}


# -- values and declarations that do not fit -------------------------------------------------------------------


async def test_a_value_that_is_no_page_is_an_error_that_says_so() -> None:
    query = "{ ports { maybe { edges { cursor } } maybeCut { edges { cursor } } } }"
    planned, _ = await asked(query, lambda: Sky(EWR={"rows": [1] * 100}))
    assert [path for path, _ in planned.errors] == [["ports", 1, "maybe"], ["ports", 1, "maybeCut"]]
    assert planned.errors[0][1].startswith(
        "the loader Sky.departures takes first and after, so it must give a page for each key, as "
        "loader.sqlalchemy.grouped_pages does, not {'rows': [1, 1,"
    )
    assert planned.errors[1][1].startswith("the loader Sky.lists must give a list for each key, or take first")
    assert planned.errors[1][1].endswith("...")
    planned, _ = await asked("{ ports { maybe { edges { cursor } } } }", lambda: Sky(EWR=[1]))
    assert planned.errors[0][1].endswith("not [1]")


class Odd(Loaders):
    @dataloader
    async def backwards(self, codes: list[str], *, last: int | None = None) -> dict[str, Page[Flight]]:
        raise NotImplementedError

    @dataloader
    async def lists(self, codes: list[str]) -> dict[str, list[Flight]]:
        raise NotImplementedError


def schema_with(annotation: Any, field: Any) -> strawberry.Schema:
    def made(name: str, **fields: tuple[Any, Any]) -> type:
        body = {"__annotations__": {key: kind for key, (kind, _) in fields.items()}}
        body.update({key: value for key, (_, value) in fields.items()})
        return strawberry.type(types.new_class(name, (), {}, lambda namespace: namespace.update(body)))

    port = made("Odd", code=(str, "JFK"), field=(annotation, field))
    return strawberry.Schema(made("Root", port=(port, strawberry.field(default=None))))


def test_the_type_may_be_lazy() -> None:
    lazy: Any = Annotated["FlightList", strawberry.lazy("tests.test_connection")]
    schema = schema_with(lazy, relation(Sky.lists, "code"))
    assert str(field_of("Odd", "field", schema).type) == "FlightList!"
    assert list(field_of("Odd", "field", schema).args) == ["before", "after", "first", "last"]


def test_a_loader_that_takes_only_some_of_the_arguments_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Odd.backwards takes \['last'\]; it must take first and after, or none"):
        schema_with(relay.ListConnection[Flight], relation(Odd.backwards, "code"))


def test_a_connection_with_a_field_that_nobody_can_know_is_refused() -> None:
    @strawberry.type
    class Priced(relay.ListConnection[relay.NodeType]):
        price: int

    with pytest.raises(TypeError, match="cannot know its field 'price': give it a default or a resolver"):
        schema_with(Priced[Flight], relation(Odd.lists, "code"))


def test_max_results_is_for_connections() -> None:
    with pytest.raises(TypeError, match=r"relation\(max_results=\) is for connections; lists is asked for something"):
        schema_with(list[Flight], relation(Odd.lists, "code", max_results=3))


def test_a_list_of_connections_is_refused() -> None:
    with pytest.raises(TypeError, match="a relation is to one connection, not to a list of them: lists"):
        schema_with(list[relay.ListConnection[Flight]], relation(Odd.lists, "code"))


def test_max_results_leaves_room_for_one() -> None:
    with pytest.raises(ValueError, match=r"relation\(max_results=\) is at least 1, not 0"):
        relation(Odd.lists, "code", max_results=0)


@pytest.mark.parametrize("wrong", ["5", 2.5, True])
def test_max_results_is_a_number_of_items(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"relation\(max_results=\) takes how many items a page has at most, not "):
        relation(Odd.lists, "code", max_results=wrong)


# -- connections of one's own ----------------------------------------------------------------------------------


@dataclass
class Row:
    id: int


@strawberry.type
class Thing(relay.Node):
    id: relay.NodeID[int]


@strawberry.type
class Wrapped(relay.Edge[relay.NodeType]):
    CURSOR_PREFIX = "wrapped"


@strawberry.type(name="Wrapping")
class Wrapping(relay.Connection[relay.NodeType]):
    edges: list[Wrapped[relay.NodeType]]  # type: ignore[assignment]  # lists are invariant, and Strawberry minds not

    @strawberry.field
    def total_count(self) -> int:
        return -1

    @classmethod
    def resolve_node(cls, node: Row, *, info: Any, **kwargs: Any) -> Any:
        return Thing(id=node.id + info.context["more"])


class Rows(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def things(self, codes: list[str]) -> dict[str, list[Thing]]:
        self.log.batches.append(("things", codes))
        return {code: [Thing(id=number) for number in range(len(code))] for code in codes}

    @dataloader
    async def rows(self, codes: list[str]) -> dict[str, list[Row]]:
        self.log.batches.append(("rows", codes))
        return {code: [Row(number) for number in range(len(code))] for code in codes}


@strawberry.type
class Shelf(Generic[relay.NodeType]):
    code: str
    things: relay.ListConnection[relay.NodeType] = relation(Rows.things, "code")
    rows: Wrapping[Thing] = relation(Rows.rows, "code")


@strawberry.type
class Shelves:
    @strawberry.field
    def shelves(self) -> list[Shelf[Thing]]:
        return [Shelf(code="ab"), Shelf(code="c")]


async def test_a_connection_may_make_its_nodes_and_cursors_itself() -> None:
    both = schemas(Shelves, Rows)
    after = to_base64("wrapped", 0)
    query = f'{{ shelves {{ rows(after: "{after}") {{ totalCount edges {{ cursor node {{ id }} }} }} }} }}'
    planned, _ = await answers(both, query, Rows, context={"more": 10})
    assert planned.log.batches == [("rows", ["ab", "c"])]
    edge = {"cursor": to_base64("wrapped", 1), "node": {"id": to_base64("Thing", 11)}}
    rows = [shelf["rows"] for shelf in planned.data["shelves"]]
    assert rows == [{"totalCount": -1, "edges": [edge]}, {"totalCount": -1, "edges": []}]


async def test_generic_types_have_connections_of_their_types() -> None:
    both = schemas(Shelves, Rows)
    things = field_of("ThingShelf", "things", both[0])
    assert list(things.args) == ["before", "after", "first", "last"]
    assert str(things.type) == "ThingConnection!"
    planned, _ = await answers(both, "{ shelves { things(last: 1) { edges { cursor node { id } } } } }", Rows)
    assert planned.log.batches == [("things", ["ab", "c"])]
    assert [positions(shelf["things"]) for shelf in planned.data["shelves"]] == [[1], [0]]


class Audited(FieldExtension):
    def resolve(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return next_(source, info, **{**kwargs, "first": 1})


async def test_an_extension_may_change_the_arguments() -> None:
    @strawberry.type
    class Root:
        code: str = "JFK"
        departures: relay.ListConnection[Flight] = relation(Sky.departures, "code", extensions=[Audited()])

    planned, _ = await answers(schemas(Root, Sky), "{ departures { edges { cursor } } }", Sky, root_value=Root())
    assert positions(planned.data["departures"]) == [0]


# -- the same as Strawberry's ----------------------------------------------------------------------------------

BOUND = st.none() | st.integers(0, 9)
COUNT = st.none() | st.integers(0, MOST)
PAGE = "{ edges { cursor node { id } } pageInfo { hasPreviousPage hasNextPage startCursor endCursor } }"


@dataclass(frozen=True)
class Slices:
    size: int
    first: int | None
    after: int | None
    last: int | None
    before: int | None

    def text(self) -> str:
        after, before = (None if at is None else cursor(at) for at in (self.after, self.before))
        return literal(first=self.first, after=after, last=self.last, before=before)

    def by_the_specification(self) -> list[int]:
        """The positions that the algorithm of the Relay specification leaves, and of them no more than the limit."""
        first = MOST if self.first is None and self.last is None else self.first
        kept = [
            at
            for at in range(self.size)
            if (self.after is None or at > self.after) and (self.before is None or at < self.before)
        ]
        kept = kept if first is None else kept[:first]
        return kept if self.last is None else kept[max(0, len(kept) - self.last) :]

    def strawberry_has_the_same_edges(self) -> bool:
        start = 0 if self.after is None else self.after + 1
        ends = [end for end in (self.before, None if self.first is None else start + self.first) if end is not None]
        if self.last is not None:
            # Theirs counts back from where a longer list would end, and takes none for all.
            return min(ends) <= self.size if ends else self.last > 0
        return self.first is not None or self.before is None or self.before - start <= MOST

    def strawberry_knows_what_is_around(self) -> bool:
        start = 0 if self.after is None else self.after + 1
        if self.size == 0 or (self.before is not None and self.before < start):
            return False
        return not (self.last is not None and self.after is not None and self.first is None and self.before is None)


def check(slices: Slices, ours: Any, theirs: Any) -> None:
    kept = slices.by_the_specification()
    assert positions(ours) == kept
    if kept:
        assert ours["pageInfo"]["hasPreviousPage"] == (kept[0] > 0)
        assert ours["pageInfo"]["hasNextPage"] == (kept[-1] < slices.size - 1)
    if slices.strawberry_has_the_same_edges():
        assert ours["edges"] == theirs["edges"]
        if slices.strawberry_knows_what_is_around():
            assert ours == theirs


@pytest.mark.thorough
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.builds(Slices, st.integers(0, 7), COUNT, BOUND, COUNT, BOUND))
def test_a_list_is_cut_as_strawberry_cuts_it(slices: Slices) -> None:
    async def main() -> None:
        query = f"{{ port {{ cut{slices.text()} {PAGE} }} reference{slices.text()} {PAGE} }}"
        answer = await ask(BOTH[0], query, Sky(), root_value=Query(codes=["x" * slices.size]))
        assert not answer.errors
        check(slices, answer.data["port"]["cut"], answer.data["reference"])

    loops.run(main, debug=False)


# -- SQL -------------------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class FlightRow(Base):
    __tablename__ = "flights"
    number: Mapped[int] = mapped_column(primary_key=True)
    origin: Mapped[str] = mapped_column(index=True)
    carrier_code: Mapped[str]


class Database(Loaders):
    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.log = Log()

    @dataloader
    async def departures(
        self,
        codes: list[str],
        *,
        first: int | None = None,
        after: int | None = None,
        last: int | None = None,
        before: int | None = None,
        total: bool = False,
    ) -> dict[str, Page[Leg]]:
        async with AsyncSession(self.engine) as session:
            pages = await grouped_pages(
                session, FlightRow, FlightRow.origin, codes,
                first=first, after=after, last=last, before=before, total=total, order_by=FlightRow.number,
            )  # fmt: skip
        return {code: legs(page) for code, page in pages.items()}

    @dataloader
    async def onward(
        self, codes: list[str], *, first: int | None = None, after: int | None = None
    ) -> dict[str, Page[Leg]]:
        async with AsyncSession(self.engine) as session:
            pages = await grouped_pages(session, FlightRow, FlightRow.origin, codes, first=first, after=after)
        return {code: legs(page) for code, page in pages.items()}

    @dataloader
    async def models(
        self, codes: list[str], *, first: int | None = None, after: int | None = None
    ) -> dict[str, Page[FlightRow]]:
        async with AsyncSession(self.engine) as session:
            return await grouped_pages(session, FlightRow, FlightRow.origin, codes, first=first, after=after)


@strawberry.type
class Leg(relay.Node):
    number: relay.NodeID[int]
    carrier_code: str
    sisters: Counted[Leg] = relation(Database.onward, "carrier_code")


def legs(page: Page[FlightRow]) -> Page[Leg]:
    rows = tuple(Leg(number=row.number, carrier_code=row.carrier_code) for row in page.rows)
    return Page(rows, page.offset, page.has_previous, page.has_next, page.total)


@strawberry.type
class Seen(relay.Node):
    """A type that takes the model's instances for its own."""

    number: relay.NodeID[int]
    carrier_code: str

    @classmethod
    def is_type_of(cls, value: object, info: Any) -> bool:
        return isinstance(value, Seen | FlightRow)


@strawberry.type
class Field:
    code: str
    departures: Counted[Leg] = relation(Database.departures, "code")
    models: relay.ListConnection[Seen] = relation(Database.models, "code")


@strawberry.type
class Fields:
    codes: strawberry.Private[Sequence[str]]

    @strawberry.field
    def fields(self) -> list[Field]:
        return [Field(code=code) for code in self.codes]

    @relay.connection(relay.ListConnection[Leg])  # type: ignore[untyped-decorator]  # as above
    def reference(self) -> list[Leg]:
        size = int(self.codes[0])
        return [Leg(number=10 * size + number, carrier_code="1") for number in range(size)]


async def fill(engine: AsyncEngine) -> list[str]:
    """A list of rows for each of the keys "0" to "6", as long as the key says; the statements to come."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session, session.begin():
        for size in range(7):
            session.add_all(
                FlightRow(number=10 * size + number, origin=str(size), carrier_code="1") for number in range(size)
            )
    statements: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    return statements


@pytest.fixture(params=["sqlite", "postgresql"])
def make_engine(request: pytest.FixtureRequest) -> Callable[[], AsyncEngine]:
    if request.param == "sqlite":
        return lambda: create_async_engine("sqlite+aiosqlite://")
    schema: server.Schema = request.getfixturevalue("postgres")
    return schema.engine


SQL = schemas(Fields, Database, config=CONFIG)


@pytest.mark.real_time
async def test_one_statement_answers_all_parents(make_engine: Callable[[], AsyncEngine]) -> None:
    engine = make_engine()
    statements = await fill(engine)
    query = f"""{{ fields {{
        departures(first: 2, after: "{cursor(0)}") {{
            totalCount edges {{ cursor node {{ id sisters(first: 1) {{ edges {{ node {{ id }} }} }} }} }}
            pageInfo {{ hasNextPage hasPreviousPage }}
        }}
    }} }}"""
    for schema in SQL:
        statements.clear()
        answer = await ask(schema, query, Database(engine), root_value=Fields(codes="0136"))
        assert not answer.errors
        selects = [each for each in statements if each.startswith("SELECT") and "flights" in each]
        assert len(selects) == 2
        assert "count(*) OVER" in selects[0]
        assert "count(*) OVER" not in selects[1]
        pages = [field["departures"] for field in answer.data["fields"]]
        assert [page["totalCount"] for page in pages] == [0, 1, 3, 6]
        assert [positions(page) for page in pages] == [[], [], [1, 2], [1, 2]]
        assert [page["pageInfo"]["hasNextPage"] for page in pages] == [False, False, False, True]
        assert [page["pageInfo"]["hasPreviousPage"] for page in pages] == [False, True, True, True]
    await engine.dispose()


@pytest.mark.real_time
async def test_nodes_may_be_instances_of_a_model(make_engine: Callable[[], AsyncEngine]) -> None:
    engine = make_engine()
    statements = await fill(engine)
    for schema in SQL:
        statements.clear()
        query = "{ fields { models(first: 1) { edges { node { id carrierCode } } } } }"
        answer = await ask(schema, query, Database(engine), root_value=Fields(codes="23"))
        assert not answer.errors
        assert len([each for each in statements if "flights" in each]) == 1
        nodes = [field["models"]["edges"][0]["node"] for field in answer.data["fields"]]
        assert nodes == [{"id": to_base64("Seen", number), "carrierCode": "1"} for number in (20, 30)]
    await engine.dispose()


@pytest.mark.real_time
async def test_pages_from_sql_are_those_that_strawberry_cuts(make_engine: Callable[[], AsyncEngine]) -> None:
    engine = make_engine()
    await fill(engine)
    random = Random(7)

    def maybe(most: int) -> int | None:
        return random.choice([None, random.randint(0, most)])

    for _ in range(80):
        slices = Slices(random.randint(0, 6), maybe(MOST), maybe(8), maybe(MOST), maybe(8))
        query = f"{{ fields {{ departures{slices.text()} {PAGE} }} reference{slices.text()} {PAGE} }}"
        answer = await ask(SQL[0], query, Database(engine), root_value=Fields(codes=str(slices.size)))
        assert not answer.errors
        check(slices, answer.data["fields"][0]["departures"], answer.data["reference"])
    await engine.dispose()

"""How many batches a query takes: for every shape the least that is possible without waiting for a backend.

The shapes are written with resolvers by hand, as one would with any loader; where giving way to the loop several times
makes one quiet turn too few, `Settle(turns=...)` reaches the least number; and the same written with relations reaches
it whatever the timing.
"""

import pytest

from tests.shapes import AUTHORS, EARLY, RELATIONS, SHAPES, Patient, Shapes, batches


@pytest.mark.every_loop
@pytest.mark.parametrize("name", SHAPES)
async def test_a_query_takes_the_least_number_of_batches(name: str, loop_kind: str) -> None:
    shape = SHAPES[name]
    log = await batches(shape.query, Shapes())
    assert log.count == shape.expected(loop_kind)


@pytest.mark.every_loop
@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.quick or shape.eager])
async def test_more_quiet_turns_reach_it_where_one_is_too_few(name: str) -> None:
    shape = SHAPES[name]
    log = await batches(shape.query, Patient())
    assert log.count == shape.least


@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("query", "initial"),
    [
        ("{ posts @stream(initialCount: 10) { author { name } } }", 1),
        ("{ postsLater @stream(initialCount: 0) { author { name } } }", 1),
        ("{ postsOneByOne @stream(initialCount: 10) { author { name } } }", 1),
        ("{ posts { editor { name } ... @defer { author { name } } } }", 1),
        ("{ user(id: 1) { name } ... @defer { posts { author { name } } } }", 1),
    ],
)
async def test_early_execution_puts_what_comes_later_into_the_first_batch(query: str, initial: int) -> None:
    """j4 to j6: without it each item of a stream is on its own."""
    log = await batches(query, Shapes(), EARLY)
    assert log.count == initial
    assert (await batches(query, Shapes())).count > initial


@pytest.mark.every_loop
@pytest.mark.parametrize("name", RELATIONS)
async def test_relations_take_the_least_number_of_batches(name: str) -> None:
    query, least = RELATIONS[name]
    log = await batches(query, Shapes())
    assert log.count == least


@pytest.mark.every_loop
@pytest.mark.parametrize("shape", ["s3", "h8"])
async def test_fields_that_take_their_turns_beside_relations_do_not_split_their_batches(shape: str) -> None:
    """What the relations ask for is one batch; what resolvers by hand ask for later is theirs."""
    by_hand = SHAPES[shape].query.removeprefix("{ posts {").removesuffix("} }")
    log = await batches(f"{{ posts {{ byRelation {{ id }} {by_hand} }} }}", Shapes())
    assert sorted(log.batches[0][1])[:AUTHORS] == list(range(AUTHORS))
    assert log.count <= 2

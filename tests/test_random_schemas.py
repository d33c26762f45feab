"""Random queries of random schemas answer alike with the plan, without it, and with resolvers written by hand.

A schema is made up as the text of a module, twice: with relations, and with `async def` resolvers in their place.
Loaders fail, return exceptions, know nothing of some keys and take their time; permissions refuse; keys are null or
cannot be found; scalars cannot go into a response. The plan must give the same data and errors, in no more virtual
time, resolve nothing twice, and take no more batches; `_check_what_is_more` has the two exceptions.

`HYPOTHESIS_EXAMPLES=20000 python -m pytest tests/test_random_schemas.py` runs that many.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import random
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from graphql import OverlappingFieldsCanBeMergedRule
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st
from strawberry.extensions import DisableValidation, ParserCache, SchemaExtension

from loader import Settle
from loader.observe import BatchRecord, Observer, observing
from loader.strawberry import install
from tests import loops
from tests.answers import Answer, QuietSchema, ask

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    import strawberry

IN_CI = bool(os.environ.get("CI"))
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "1000" if IN_CI else "150"))
SCHEMAS = min(200, max(10, EXAMPLES // 25))  # building one takes as long as dozens of queries


@dataclass(frozen=True)
class LoaderSpec:
    name: str
    target: str  # "" for numbers, some of which are none
    many: bool
    delay: float
    trouble: str
    options: str
    stream: bool


@dataclass(frozen=True)
class FieldSpec:
    """A field of a type.

    Attributes:
        kind: "attribute", "object" and "objects" (attributes that hold some), "relation", "def" or "async".
        target: The type of the objects, "" for scalars.
        type: The annotation.
        loader: What answers a relation.
        key: The expression of its key, given `self`.
        guard: The permission class, if any.
        pause: How long an own resolver takes.
    """

    name: str
    kind: str
    type: str
    target: str = ""
    loader: LoaderSpec | None = None
    key: str = ""
    guard: str = ""
    pause: float = 0
    takes_step: bool = False


@dataclass(frozen=True)
class SchemaSpec:
    """A schema. The types in `unfit` have some attributes that cannot go into a response."""

    types: dict[str, list[FieldSpec]]
    unfit: set[str]
    loaders: list[LoaderSpec]
    shared: list[FieldSpec]
    roots: list[FieldSpec]


def make_spec(rng: random.Random) -> SchemaSpec:
    names = [f"T{n}" for n in range(rng.randint(2, 4))]
    targets = [*names, "Base", "Either"]
    loaders = [
        LoaderSpec(
            name=f"l{n}",
            target=rng.choice([*targets, ""]) if n else names[0],
            many=rng.random() < 0.3,
            delay=rng.choice([0, 1, 1, 2, 5]),
            trouble=rng.choice(["", "", "", "", "broken", "bad", "gaps", "bad gaps"]),
            options=rng.choice(
                [
                    *("", "", "default=None", "cache=False", "max_batch_size=2", "default=None, cache=False"),
                    *("cache_key_fn=number", "cache_key_fn=repr, cache=False"),
                ]
            ),
            stream=rng.random() < 0.1,
        )
        for n in range(rng.randint(3, 6))
    ]

    def relation(name: str) -> FieldSpec:
        loader = rng.choice(loaders)
        target = loader.target or "int"
        inner = target if rng.random() < 0.2 else f"{target} | None"
        annotation = f"list[{inner}]" if loader.many else inner
        if loader.many and rng.random() < 0.5:
            annotation += " | None"
        number = f"self.id * {rng.randint(1, 3)} + {rng.randint(0, 4)}"
        key = rng.choice(
            [
                "self.id",
                "self.id",
                number,
                number,
                "self.link",
                "self.link",
                "(self.id, self.link)",
                f"fails(self, {rng.randint(3, 9)})",
                f"Ref(self.id // {rng.randint(1, 3)})",
            ]
        )
        guard = rng.choice([""] * 6 + ["Sync", "Async"])
        return FieldSpec(name, "relation", annotation, loader.target, loader, key, guard, takes_step=not loader.stream)

    def own(name: str) -> FieldSpec:
        kind = rng.choice(["def", "async", "async", "object", "objects"])
        pause = rng.choice([0, 0, 1, 3, 7])
        if kind == "object" or kind == "objects":
            target = rng.choice(targets)
            annotation = f"{target} | None" if kind == "object" else f"list[{target} | None]"
            return FieldSpec(name, kind, annotation, target)
        shape = rng.choice(["str", "str | None", "one", "list"])
        if shape in ("one", "list"):
            target = rng.choice(targets)
            return FieldSpec(name, kind, f"list[{target}]" if shape == "list" else target, target, pause=pause)
        return FieldSpec(name, kind, shape, pause=pause)

    def fields(prefix: str, most: int) -> list[FieldSpec]:
        made = [relation(f"{prefix}r{n}") for n in range(rng.randint(1, most))]
        made += [own(f"{prefix}o{n}") for n in range(rng.randint(0, 2))]
        return made

    roots = [
        FieldSpec(f"q{n}", rng.choice(["def", "async"]), f"list[{target}]", target, pause=rng.choice([0, 0, 2]))
        for n, target in enumerate(targets)
    ]
    unfit = {name for name in names if rng.random() < 0.3}
    return SchemaSpec({name: fields("", 4) for name in names}, unfit, loaders, fields("s", 2), roots)


# -- a spec as the text of a module ----------------------------------------------------------------------------

HEAD = """
import asyncio
from typing import Annotated, Any
import strawberry
from strawberry.permission import BasePermission
from loader import Loaders, dataloader
from loader.strawberry import relation
from tests.answers import Log

class Ref:
    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return f"Ref({self.number})"

def number(key):
    return sum(map(number, key)) if isinstance(key, tuple) else key.number if isinstance(key, Ref) else key

def fails(source, each):
    if source.id % each == 2:
        raise LookupError(f"no key in {source.id}")
    return source.id

class Sync(BasePermission):
    message = "refused"
    def has_permission(self, source: Any, info: strawberry.Info, **kwargs: Any) -> bool:
        info.context["loaders"].log.call("Sync", info)
        return source.id % 4 != 1

class Async(BasePermission):
    message = "refused later"
    async def has_permission(self, source: Any, info: strawberry.Info, **kwargs: Any) -> bool:
        info.context["loaders"].log.call("Async", info)
        await asyncio.sleep(0)
        return source.id % 4 != 2

def make(target, n):
    kinds = CONCRETE.get(target, [target])
    kind = globals()[kinds[n % len(kinds)]]
    return kind(id=n)

def some(target, n):
    return [make(target, n + more) for more in range(n % 3)]

def digit(n):
    return n if n % 5 else "no number"
"""

LOADER = """
    @dataloader({options})
    async def {name}(self, keys, *, step: int = 1):
        self.log.batches.append(("{name}", keys))
        await asyncio.sleep({delay})
        {broken}
        found = {{}}
        for key in keys:
            n = (number(key) * step) % 11
            if {bad} and n % 7 == 3:
                found[key] = ValueError(f"{name} has a bad {{n}}")
            elif not ({gaps} and n % 5 == 4):
                found[key] = {value}
        return found
"""

# Rows come in an order of their own, as those of a database do. Where keys are answered in the order in which they were
# asked for, it is luck which of two that are asked for at once comes first (`tests/test_plan_luck.py`).
STREAM = """
    @dataloader({options})
    async def {name}(self, keys):
        self.log.batches.append(("{name}", keys))
        for key in sorted(keys, key=repr):
            await asyncio.sleep({delay})
            n = number(key) % 11
            yield key, {value}
"""

OWN = """
    @strawberry.field
    {kind} {name}(self, info: strawberry.Info) -> "{type}":
        info.context["loaders"].log.call("{name}", info)
        {pause}
        if {refuses} and self.id % 6 == 5:
            raise RuntimeError(f"{name} fails in {{self.id}}")
        return {value}
"""

BY_HAND = """
    @strawberry.field({guard})
    async def {name}(self, info: strawberry.Info{step}) -> "{type}":
        key = {key}
        if key is None or (isinstance(key, tuple) and None in key):
            return {null}
        return await info.context["loaders"].{loader}{call}.load(key)
"""


def field_text(spec: FieldSpec, *, by_hand: bool) -> str:
    guard = f"permission_classes=[{spec.guard}]" if spec.guard else ""
    if spec.kind == "relation":
        assert spec.loader is not None
        if by_hand:
            return BY_HAND.format(
                guard=guard,
                name=spec.name,
                type=spec.type,
                key=spec.key,
                loader=spec.loader.name,
                step=", step: int = 1" if spec.takes_step else "",
                call="(step=step)" if spec.takes_step else "",
                null="[]" if spec.type.startswith("list") and not spec.type.endswith("None") else "None",
            )
        key = {"self.id": '"id"', "self.link": '"link"', "(self.id, self.link)": '("id", "link")'}.get(
            spec.key, f"lambda self: {spec.key}"
        )
        more = f", {guard}" if guard else ""
        return f'    {spec.name}: "{spec.type}" = relation(App.{spec.loader.name}, {key}{more})\n'
    if spec.kind in ("object", "objects"):
        return f'    {spec.name}: "{spec.type}" = None\n'
    many = spec.type.startswith("list")
    value = f'{"some" if many else "make"}("{spec.target}", self.id + 1)' if spec.target else 'f"own {self.id}"'
    pause = f"await asyncio.sleep({spec.pause})" if spec.kind == "async" else "pass"
    kind = "async def" if spec.kind == "async" else "def"
    return OWN.format(kind=kind, name=spec.name, type=spec.type, pause=pause, refuses=spec.pause == 3, value=value)


def module_text(spec: SchemaSpec, *, by_hand: bool) -> str:
    names = list(spec.types)
    parts = [HEAD, f"CONCRETE = {{'Base': {names}, 'Either': {names[:2]}}}\n", "class App(Loaders):\n"]
    parts.append("    def __init__(self):\n        self.log = Log()\n")
    for each in spec.loaders:
        value = f'some("{each.target}", n)' if each.many else f'make("{each.target}", n)'
        if not each.target:
            value = "[digit(n), n]" if each.many else "digit(n)"
        parts.append(
            (STREAM if each.stream else LOADER).format(
                name=each.name,
                options=each.options,
                delay=each.delay,
                value=value,
                broken=f'raise ConnectionError("{each.name} is down")' if "broken" in each.trouble else "pass",
                bad="bad" in each.trouble,
                gaps="gaps" in each.trouble,
            )
        )
    own = (
        "    id: int\n    name: str = 'name'\n    label: str | None = None\n    link: strawberry.Private[Any] = None\n"
        "    mark: int = 1\n    marks: list[int] = ()\n    perhaps: int | None = 2\n"
    )
    parts.append("@strawberry.interface\nclass Base:\n" + own)
    parts += [field_text(field, by_hand=by_hand) for field in spec.shared]
    for name, fields in spec.types.items():
        parts.append(f"@strawberry.type\nclass {name}(Base):\n    def __post_init__(self):\n")
        parts.append("        self.link = self.id // 2 if self.id % 3 else None\n")
        parts.append("        self.label = f'label {self.id}' if self.id % 2 else None\n")
        if name in spec.unfit:
            parts.append("        self.mark = 'no number' if self.id % 8 == 7 else self.id\n")
            parts.append("        self.marks = {5: 5, 6: [6, 'no number']}.get(self.id % 9, [self.id])\n")
            parts.append("        self.perhaps = 'no number' if self.id % 2 else None\n")
        for field in (*spec.shared, *fields):
            # What an attribute holds ends at 3, or an object would hold one that holds one and so on.
            if field.kind == "object":
                parts.append(
                    f'        self.{field.name} = make("{field.target}", self.id - 12) if self.id > 8 else None\n'
                )
            elif field.kind == "objects":
                parts.append(
                    f'        self.{field.name} = [make("{field.target}", self.id - 12), None] if self.id > 6 else []\n'
                )
        parts += [field_text(field, by_hand=by_hand) for field in fields]
    parts.append(f'Either = Annotated[{" | ".join(names[:2])}, strawberry.union("Either")]\n')
    parts.append("@strawberry.type\nclass Query:\n")
    for field in spec.roots:
        pause = f"await asyncio.sleep({field.pause})" if field.kind == "async" else "pass"
        kind = "async def" if field.kind == "async" else "def"
        parts.append(
            f'    @strawberry.field\n    {kind} {field.name}(self, n: int = 3) -> "{field.type}":\n'
            f'        {pause}\n        return [make("{field.target}", each) for each in range(1, n + 1)]\n'
        )
    return "".join(parts)


def built(spec: SchemaSpec, name: str, *, by_hand: bool) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module  # Strawberry looks up names there
    exec(compile(module_text(spec, by_hand=by_hand), name, "exec"), vars(module))  # noqa: S102  # our own text
    return module


class MayMerge(SchemaExtension):
    """The one rule that these queries may break. All of them would take longer than the three answers."""

    def on_operation(self) -> Iterator[None]:
        self.execution_context.validation_rules = (OverlappingFieldsCanBeMergedRule,)
        yield


@functools.cache
def schemas_of(seed: int) -> tuple[SchemaSpec, list[tuple[strawberry.Schema, Any]]]:
    """A spec, and its schemas with their loaders: planned, without a plan, by hand."""
    spec = make_spec(random.Random(seed))
    made: list[tuple[strawberry.Schema, Any]] = []
    related = built(spec, f"random_schema_{seed}", by_hand=False)
    by_hand = built(spec, f"random_schema_{seed}_by_hand", by_hand=True)
    for module, plan in ((related, True), (related, False), (by_hand, False)):
        # The three get the same text, and are equal but for their resolvers: to parse and validate it once is enough.
        made.append((_schema(module, spec, plan=plan, validate=not made), module.App))
    assert _signature(made[1][0]) == _signature(made[2][0])
    return spec, made


@functools.cache
def patient_schemas_of(seed: int) -> list[tuple[strawberry.Schema, Any]]:
    """The same, planned and without a plan, with so many quiet turns that it does not matter when one asks."""
    spec = make_spec(random.Random(seed))
    module = built(spec, f"random_schema_{seed}_patient", by_hand=False)
    for each in spec.loaders:
        getattr(module.App, each.name).options["window"] = Settle(turns=40, max_turns=2000)
    return [(_schema(module, spec, plan=plan, validate=False), module.App) for plan in (True, False)]


def _schema(module: types.ModuleType, spec: SchemaSpec, *, plan: bool, validate: bool) -> strawberry.Schema:
    schema = QuietSchema(
        module.Query,
        types=[getattr(module, name) for name in spec.types],
        extensions=[ParserCache, MayMerge if validate else DisableValidation],
    )
    install(schema, loaders=module.App, plan=plan)
    return schema


def _signature(schema: strawberry.Schema) -> list[str]:
    return sorted(schema.as_str().splitlines())  # attributes come before resolvers


# -- queries ---------------------------------------------------------------------------------------------------

DIRECTIVES = [""] * 12 + [" @include(if: $yes)", " @skip(if: $no)", " @include(if: $no)", " @skip(if: $yes)"]


class Query:
    """A query as it is made up, choice by choice. Each choice is Hypothesis's, so that it finds the smallest query.

    The choices are those of a `random.Random`: strategies for each of them would take longer than all the answers.
    """

    def __init__(self, spec: SchemaSpec, choices: random.Random) -> None:
        self._spec = spec
        self._choices = choices
        self._fragments: list[str] = []

    def text(self) -> str:
        choices = self._choices
        roots = []
        for n in range(choices.randint(1, 2)):
            root = choices.choice(self._spec.roots)
            inner = self._selections(root.target, choices.randint(2, 4))
            roots.append(f"root{n}: {root.name}(n: {choices.choice([3, 6, 2, 1, 0, 9])}) {inner}")
        variables = "($yes: Boolean!, $no: Boolean!, $step: Int!)"
        return f"query {variables} {{ {' '.join(roots)} }} {' '.join(self._fragments)}"

    def _some(self, of: Sequence[Any], least: int, most: int) -> list[Any]:
        return [self._choices.choice(of) for _ in range(self._choices.randint(least, most))]

    def _selections(self, target: str, depth: int) -> str:
        """A selection set of a type, with its braces."""
        names = list(self._spec.types)
        choices = self._choices
        chosen = ["__typename"] if choices.choice([False, True]) else []
        if target == "Either":
            conditions = names[:2]
            fields: list[FieldSpec] = []
        elif target == "Base":
            conditions, fields = names, self._spec.shared
            chosen.append("id")
        else:
            conditions, fields = [target, "Base"], self._spec.types[target] + self._spec.shared
            chosen += self._some(["id", "name", "label", "alias: id", "mark", "marks", "perhaps"], 0, 2)
        if depth:
            if fields:
                chosen += [self._selected(field, depth) for field in self._some(fields, 1, 4)]
            if choices.randint(0, 3) == 3 or target == "Either":
                chosen += [self._fragment(condition, depth) for condition in self._some(conditions, 1, 2)]
        return "{ " + " ".join(chosen or ["__typename"]) + " }"

    def _fragment(self, condition: str, depth: int) -> str:
        inner = self._selections(condition, depth - 1)
        directive = self._choices.choice(DIRECTIVES)
        if self._choices.choice([False, True]):
            name = f"F{len(self._fragments)}"
            self._fragments.append(f"fragment {name} on {condition} {inner}")
            return f"...{name}{directive}"
        return f"... on {condition}{directive} {inner}"

    def _selected(self, field: FieldSpec, depth: int) -> str:
        """A field. Its name is its own, or it may not be merged with another one of the same name."""
        choices = self._choices
        arguments = choices.choice(["", "", "(step: 2)", "(step: $step)"]) if field.takes_step else ""
        inner = " " + self._selections(field.target, depth - 1) if field.target else ""
        name = field.name
        if arguments or field.target or choices.choice([False, True]):
            # One alias for one meaning: fields of an alias are merged only if they agree in everything.
            name = f"{field.name}_{'step' if '$' in arguments else 'two' if arguments else 'x'}: {field.name}"
            if choices.randint(0, 2) == 2:
                name = f"a{choices.randint(0, 10**6)}_{field.name}: {field.name}"
        return f"{name}{arguments}{choices.choice(DIRECTIVES)}{inner}"


VARIABLES = {"yes": True, "no": False, "step": 3}


@pytest.fixture
def _none_left() -> Iterator[None]:
    """Let go of the coroutines that are left while it is known what they are: else the next test is blamed for them."""
    yield
    gc.collect()


# graphql-core cancels fields before they have started, and leaves the coroutines inside them.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("_none_left")
@pytest.mark.timeout(60 + EXAMPLES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=IN_CI,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(st.integers(0, SCHEMAS - 1), st.randoms(use_true_random=False))
def test_random_queries_answer_alike(seed: int, choices: random.Random) -> None:
    spec, made = schemas_of(seed)
    query = Query(spec, choices).text()
    note(query)
    planned, plain, by_hand = (_answer(schema, query, app(), VARIABLES) for schema, app in made)
    assert planned.data == plain.data == by_hand.data
    assert planned.seen() == plain.seen() == by_hand.seen()
    assert planned.took <= plain.took
    for answer in (planned, plain, by_hand):
        assert set(answer.log.calls.values()) <= {1}  # whatever fails, nothing is resolved twice
    if planned.log.count > plain.log.count:
        _check_what_is_more(seed, query, planned, plain)


def _check_what_is_more(seed: int, query: str, planned: Answer, plain: Answer) -> None:
    """The two reasons for which a planned query may take more batches.

    An error makes more null than its own field, and in what became null something was asked, or not, before it was
    cancelled: that is a matter of turns of the loop. Batches in which nothing else was asked do not count.

    Or it is luck, as `tests/test_plan_luck.py` has it: of two lists that wait, one is
    loaded a turn or two sooner or later than its resolvers would be, and misses a batch that they meet. So it is only
    if the unplanned query takes fewer than the least number of batches that its shape is sure of, which is what it
    takes with so many quiet turns that no turn matters; or if one quiet turn was too few for the planned one, which
    then takes no more with as many. It is one batch, and no more.
    """
    if plain.cancelled:
        assert _asked_outside_of_nulls(schemas_of(seed)[1][0], query, planned) <= plain.log.count
        return
    assert planned.log.count == plain.log.count + 1
    planned_patiently, plain_patiently = (
        _answer(schema, query, app(), VARIABLES).log.count for schema, app in patient_schemas_of(seed)
    )
    assert planned.log.count <= plain_patiently or planned_patiently <= plain.log.count


def _asked_outside_of_nulls(made: tuple[strawberry.Schema, Any], query: str, answer: Answer) -> int:
    """How many of a query's batches were asked for something in a place that did not become null by an error below."""
    nulls = [[step for step in path if isinstance(step, str)] for path in answer.nulls_of_errors_below()]
    watching = Watching()
    with observing(watching):
        again = _answer(made[0], query, made[1](), VARIABLES)
    assert repr(again.log) == repr(answer.log)
    places = [[place.function.split(".") for place in batch.asked] for batch in watching.batches]
    return sum(any(all(path[: len(null)] != null for null in nulls) for path in asked) for asked in places)


class Watching(Observer):
    """The batches that were sent. It sees where in the query they were asked for."""

    def __init__(self) -> None:
        self.batches: list[BatchRecord] = []

    def batch_sent(self, batch: BatchRecord) -> None:
        self.batches.append(batch)


def _run(main: Any) -> Answer:
    """`loops.run`, which is too thorough for thousands: it collects garbage three times."""
    loop = loops.new_loop()
    reports: list[Any] = []
    loop.set_exception_handler(lambda _, context: reports.append(context))
    try:
        answer: Answer = loop.run_until_complete(main())
        loop.run_until_complete(asyncio.sleep(60))  # fields whose answer nobody will see end in the background
        assert not asyncio.all_tasks(loop)
        assert not loops.timers(loop)
        assert not reports
    finally:
        loop.close()
    return answer


def _answer(schema: strawberry.Schema, query: str, loaders: Any, variables: dict[str, Any]) -> Answer:
    used = {name: value for name, value in variables.items() if query.count(f"${name}") > 1}
    for name in variables.keys() - used.keys():
        query = query.replace(f"${name}: {'Int' if name == 'step' else 'Boolean'}!, ", "").replace(
            f"${name}: {'Int' if name == 'step' else 'Boolean'}!", ""
        )
    query = query.replace("query ()", "query").replace(", )", ")")

    def main() -> Coroutine[Any, Any, Answer]:
        return ask(schema, query, loaders, variable_values=used)

    answer = _run(main)
    assume(all(path for path, _ in answer.errors))  # two fields of one name may disagree: the query is not valid
    return answer

"""`@dataloader`: options, parameters, and what is refused."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from loader import Declaration, Loaders, Scope, dataloader
from tests.fakes import outcome, together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class AppLoaders(Loaders):
    def __init__(self) -> None:
        self.log: list[Any] = []

    @dataloader
    async def plain(self, keys: list[int]) -> list[int]:
        """The text of the method."""
        return keys

    @dataloader(default=None)
    async def mapped(self, keys: list[int]) -> dict[int, str]:
        return {1: "one"}

    @dataloader(index_by="id")
    async def indexed(self, keys: list[int]) -> list[dict[str, int]]:
        return [{"id": key} for key in reversed(keys)]

    @dataloader(group_by="of")
    async def grouped(self, keys: list[int], /) -> list[dict[str, int]]:
        return [{"of": 1, "n": 1}, {"of": 1, "n": 2}]

    @dataloader(name="renamed", max_batch_size=1)
    async def streamed(self, keys: list[int]) -> AsyncIterator[tuple[int, int]]:
        self.log.append(keys)
        for key in keys:
            yield key, key

    @dataloader
    async def departures(self, codes: list[str], *, first: int = 10, day: Any = None) -> list[str]:
        self.log.append((codes, first, day))
        return [f"{code} {first} {day}" for code in codes]

    @dataloader
    async def required(self, keys: list[int], *, first: int, last: int = 0) -> list[int]:
        return [key + first + last for key in keys]


@pytest.mark.every_loop
async def test_a_declared_loader_has_the_options_of_a_dataloader() -> None:
    async with AppLoaders() as loaders:
        assert await loaders.plain.load(1) == 1
        assert await loaders.mapped.load_many([1, 2]) == ["one", None]
        assert await loaders.indexed.load_many([1, 2]) == [{"id": 1}, {"id": 2}]
        assert await loaders.grouped.load_many([1, 2]) == [[{"of": 1, "n": 1}, {"of": 1, "n": 2}], []]
        assert await loaders.streamed.load_many([1, 2]) == [1, 2]
        assert loaders.log == [[1], [2]]
        assert loaders.streamed.name == "renamed"
        assert loaders.plain.name == "AppLoaders.plain"


def test_on_the_class_the_attribute_is_the_declaration() -> None:
    declaration: Any = AppLoaders.plain
    assert isinstance(declaration, Declaration)
    assert declaration.name == "plain"
    assert declaration.__doc__ == "The text of the method."


@pytest.mark.every_loop
async def test_each_set_of_parameters_has_a_loader_and_batches_of_its_own() -> None:
    async with AppLoaders() as loaders:
        assert loaders.departures(first=5) is loaders.departures(first=5, day=None)
        assert loaders.departures() is loaders.departures is loaders.departures(first=10)
        found = await together(
            loaders.departures.load("JFK"),
            loaders.departures(first=5).load("JFK"),
            loaders.departures(first=5).load("LGA"),
            loaders.departures(day=1, first=5).load("JFK"),
        )
        assert found == ["JFK 10 None", "JFK 5 None", "LGA 5 None", "JFK 5 1"]
        assert sorted(loaders.log, key=str) == [(["JFK", "LGA"], 5, None), (["JFK"], 10, None), (["JFK"], 5, 1)]
        assert loaders.departures(first=5).name == "AppLoaders.departures(first=5, day=None)"


@pytest.mark.every_loop
async def test_equal_values_of_different_types_are_different_parameters() -> None:
    async with AppLoaders() as loaders:
        days = (1, 1.0, True, (1, (1,)), (1, (True,)), (1.0, (1,)), frozenset({1}), frozenset({True}))
        seen = [await loaders.departures(day=day).load("JFK") for day in days]
        assert seen == [f"JFK 10 {day}" for day in days]


@pytest.mark.every_loop
async def test_a_loader_with_parameters_belongs_to_the_scope_that_is_current_when_it_is_asked_for() -> None:
    loaders = AppLoaders()
    outside = loaders.departures
    async with Scope():
        assert outside(first=5) is loaders.departures(first=5)
        assert outside(first=5) is not outside


@pytest.mark.every_loop
async def test_a_parameter_without_a_default_must_be_given() -> None:
    async with AppLoaders() as loaders:
        assert await loaders.required(first=5).load(1) == 6
        assert await loaders.required(last=1, first=5).load(1) == 7
        message = r"AppLoaders.required: the parameter 'first' has no default; call AppLoaders.required\(first=...\)"
        with pytest.raises(TypeError, match=message):
            loaders.required.load(1)
        with pytest.raises(TypeError, match=message):
            loaders.required(last=1)  # type: ignore[call-arg]
        assert not hasattr(loaders.required, "__wrapped__")


@pytest.mark.every_loop
async def test_wrong_parameters_are_refused() -> None:
    async with AppLoaders() as loaders:
        departures: Any = loaders.departures
        with pytest.raises(TypeError, match=r"departures has no parameter 'last'; it has \['day', 'first'\]"):
            departures(last=5)
        plain: Any = loaders.plain
        with pytest.raises(TypeError, match="plain has no parameter 'first'; it has none"):
            plain(first=5)
        with pytest.raises(TypeError, match=r"departures.* takes parameters by name only"):
            departures(5)
        with pytest.raises(
            TypeError, match=r"the value of 'day' must be hashable.*\[1\] is not. Give a tuple instead of"
        ):
            departures(day=[1])


def refused(declare: Callable[[], object]) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        declare()
    return str(caught.value)


def test_methods_that_cannot_be_loaders_are_refused_where_they_are_written() -> None:
    def no_keys(self: Any) -> list[int]:
        return []

    def keys_by_name(self: Any, *, keys: list[int]) -> list[int]:
        return keys

    def second_position(self: Any, keys: list[int], first: int = 10) -> list[int]:
        return keys

    def anything(self: Any, keys: list[int], **rest: int) -> list[int]:
        return keys

    declare: Any = dataloader
    assert refused(lambda: declare(no_keys)) == "@dataloader: no_keys must take self and a list of keys"
    assert "keys_by_name must take self and a list of keys" in refused(lambda: declare(keys_by_name))
    assert "the parameter 'first' of second_position must be keyword-only" in refused(lambda: declare(second_position))
    assert "the parameter 'rest' of anything must be keyword-only" in refused(lambda: declare(anything))
    assert "max_batch_size must be at least 1" in refused(lambda: declare(max_batch_size=0)(anything))
    assert "load_fn must be a function" in refused(lambda: declare(7))


def test_an_error_in_an_option_names_the_method_and_the_option() -> None:
    async def users(self: Any, keys: list[int]) -> list[int]:
        return keys

    users.__qualname__ = "AppLoaders.users"
    declare: Any = dataloader
    assert refused(lambda: declare(max_batch=1)(users)).startswith(
        "@dataloader: AppLoaders.users is given the option 'max_batch', which is none of DataLoader's: max_batch_size, "
    )
    assert refused(lambda: declare(name=3)(users)) == "@dataloader: AppLoaders.users: name takes a string, not 3"
    for empty in ("", ("id", "")):
        assert "AppLoaders.users: index_by and group_by take the name of an" in refused(
            lambda empty=empty: declare(index_by=empty)(users)  # type: ignore[misc]
        )


def test_a_loader_that_is_asked_on_the_class_says_where_it_is() -> None:
    declared: Any = AppLoaders.plain
    with pytest.raises(AttributeError) as caught:
        declared.load(1)
    assert str(caught.value) == (
        "AppLoaders.plain has no 'load': it declares a loader, which each instance has of its own, "
        "as in AppLoaders(...).plain"
    )
    assert not hasattr(declared, "__wrapped__")


@pytest.mark.every_loop
async def test_a_loader_with_parameters_keeps_them_when_others_are_given() -> None:
    async with AppLoaders() as loaders:
        assert await loaders.departures(first=5)(day=1).load("JFK") == "JFK 5 1"
        assert loaders.departures(first=5)(day=1) is loaders.departures(day=1)(first=5)
        assert loaders.departures(first=5)(first=6) is loaders.departures(first=6)
        assert loaders.departures(first=5)() is loaders.departures(first=5)


def test_a_declaration_belongs_into_loaders() -> None:
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class _Elsewhere:
            @dataloader
            async def things(self, keys: list[int]) -> list[int]:
                return keys

    # Before Python 3.12 the error is the cause of a RuntimeError.
    error = caught.value if sys.version_info >= (3, 12) else caught.value.__cause__
    assert "_Elsewhere.things is not in a subclass of Loaders" in str(error)


@pytest.mark.every_loop
async def test_a_subclass_inherits_and_overrides_loaders() -> None:
    class Sub(AppLoaders):
        @dataloader
        async def plain(self, keys: list[int]) -> list[int]:
            return [-key for key in keys]

    async with Sub() as loaders:
        assert await loaders.plain.load(1) == -1
        assert await loaders.mapped.load(1) == "one"
        assert loaders.mapped.name == "Sub.mapped"


@pytest.mark.every_loop
async def test_a_failing_declared_loader_names_itself() -> None:
    class Broken(Loaders):
        @dataloader
        async def short(self, keys: list[int]) -> list[int]:
            return []

    async with Broken() as loaders:
        assert str(await outcome(loaders.short.load(1))).startswith("Broken.short: the batch function was given 1 keys")


async def test_each_loader_makes_a_cache_map_of_its_own() -> None:
    made: list[dict[int, str]] = []

    def make() -> dict[int, str]:
        made.append({})
        return made[-1]

    class AppLoaders(Loaders):
        def __init__(self, user: str) -> None:
            self.user = user

        @dataloader(cache_map=make)
        async def secrets(self, ids: list[int], *, first: int = 1) -> list[str]:
            return [f"{self.user}:{key}:{first}" for key in ids]

    made.clear()  # the options were tried out when they were declared
    alice, bob = AppLoaders("alice"), AppLoaders("bob")
    assert await alice.secrets.load(1) == "alice:1:1"
    assert await alice.secrets(first=2).load(1) == "alice:1:2"
    assert await bob.secrets.load(1) == "bob:1:1"
    assert made == [{1: "alice:1:1"}, {1: "alice:1:2"}, {1: "bob:1:1"}]


def test_a_cache_map_that_all_requests_would_share_is_refused() -> None:
    with pytest.raises(TypeError, match="share"):

        @dataloader(cache_map={})  # type: ignore[call-overload,untyped-decorator]  # the mistake
        async def secrets(self: Any, ids: list[int]) -> list[int]:
            return ids


@pytest.mark.parametrize("name", ["aclose", "clear_all"])
def test_a_loader_with_the_name_of_a_method_of_loaders_is_refused(name: str) -> None:
    async def method(self: Any, ids: list[int]) -> list[int]:
        return ids

    with pytest.raises((TypeError, RuntimeError)) as refused:  # Python 3.11 wraps errors of __set_name__
        type("AppLoaders", (Loaders,), {name: dataloader(method)})
    assert "rename it" in str(refused.value.__cause__ or refused.value)


def test_a_cache_key_fn_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="cache_key_fn takes a function"):

        @dataloader(cache_key_fn=3)  # type: ignore[call-overload,untyped-decorator]  # the mistake
        async def users(self: Any, ids: list[int]) -> list[int]:
            return ids

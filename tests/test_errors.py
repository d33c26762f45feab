"""One hierarchy, with the built-in exceptions that people already catch."""

from __future__ import annotations

import pytest

from loader import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_loader_error(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.LoaderError)


def test_every_exception_of_the_module_is_public() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize(
    ("error", "caught_as"),
    [
        (errors.KeyNotFoundError, KeyError),
        (errors.BatchResultError, TypeError),
        (errors.BatchResultError, ValueError),
        (errors.LoaderClosedError, RuntimeError),
        (errors.LoaderLoopError, RuntimeError),
        (errors.LoaderTimeoutError, TimeoutError),
        (errors.SelfWaitError, RuntimeError),
    ],
)
def test_errors_are_caught_as_what_people_know(error: type[Exception], caught_as: type[Exception]) -> None:
    with pytest.raises(caught_as, match="a sentence"):
        raise error("a sentence")


def test_a_missing_key_reads_as_a_sentence_and_not_as_the_repr_of_one() -> None:
    assert str(errors.KeyNotFoundError("no value came for key 'a'")) == "no value came for key 'a'"

"""What one operation may ask for. Strawberry's own limiters come after `MaxValues`, which bounds their work too."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from graphql import (
    FieldNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLInterfaceType,
    GraphQLObjectType,
    IntValueNode,
    OperationDefinitionNode,
    ValidationContext,
    ValidationRule,
    VariableNode,
    get_named_type,
    get_nullable_type,
    is_list_type,
)
from strawberry.extensions import (
    DisableIntrospection,
    MaskErrors,
    MaxAliasesLimiter,
    MaxTokensLimiter,
    QueryDepthLimiter,
    SchemaExtension,
)

from example_app.loaders import DEFAULT_FIRST, MAX_FIRST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from graphql import GraphQLNamedType, SelectionSetNode, ValueNode

    from example_app.settings import Settings

MAX_DIGITS = 100


def limits(settings: Settings) -> list[Callable[[], SchemaExtension]]:
    """The extensions that hold operations to the settings."""
    return [
        lambda: MaskErrors(is_unexpected, "the service failed to answer this: what happened is in its log"),
        lambda: MaxTokensLimiter(settings.max_tokens),
        lambda: MaxValues(settings.max_values),
        lambda: QueryDepthLimiter(settings.max_depth),
        lambda: MaxAliasesLimiter(settings.max_aliases),
        Unicode,
        lambda: TimeLimit(settings.max_seconds),
        *([] if settings.introspection else [DisableIntrospection]),
    ]


def is_unexpected(error: GraphQLError) -> bool:
    """Whether it is no error of the client's, and nothing that we wrote for clients to read."""
    return not isinstance(error.original_error, GraphQLError | None)


class Unicode(SchemaExtension):
    """Refuses variables with half a surrogate pair, which JSON can hold and a database cannot. The query has none."""

    def on_execute(self) -> Iterator[None]:
        """Look at the variables."""
        try:
            json.dumps(self.execution_context.variables, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise GraphQLError("variables must be Unicode text: there is half a surrogate pair in them") from None
        yield


class TimeLimit(SchemaExtension):
    """Ends a query or a mutation that takes longer; of a subscription, what comes before its first event."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def on_execute(self) -> AsyncIterator[None]:
        """Execute with a time limit."""
        try:
            async with asyncio.timeout(self.seconds):
                yield
        except TimeoutError:
            raise GraphQLError(f"the operation took longer than {self.seconds:g} s: ask for less at a time") from None


class MaxValues(SchemaExtension):
    """Limits how many values an operation asks for: each field counts as often as the lists above it may repeat it."""

    def __init__(self, most: int) -> None:
        self.most = most

    def on_operation(self) -> Iterator[None]:
        """Add a rule to those that the document is validated with."""
        execution, most = self.execution_context, self.most

        class Rule(ValidationRule):
            def __init__(self, context: ValidationContext) -> None:
                super().__init__(context)
                values = _Values(context, execution.variables or {}).of_document()
                if values > most:
                    # Raised, not reported: nothing after it may work on a document that unfolds to so much.
                    raise GraphQLError(
                        f"the operation asks for up to {values:,} values, and {most:,} are allowed: "
                        "lower `first` or select fewer fields"
                    )

            def enter_int_value(self, node: IntValueNode, *_: Any) -> None:
                if len(node.value) > MAX_DIGITS:  # Python reads no more than some thousands
                    raise GraphQLError("a number in the operation has too many digits", node)

        execution.validation_rules += (Rule,)
        yield


class _Values:
    """Counts the values; each fragment once, so that the work is that of reading the document."""

    def __init__(self, context: ValidationContext, variables: Mapping[str, Any]) -> None:
        self.context = context
        self.given = variables
        self.variables: dict[str, Any] = {}  # the values that they have in the operation that is being counted
        self.fragments: dict[str, int | None] = {}  # None while it is being counted

    def of_document(self) -> int:
        total = 0
        for node in self.context.document.definitions:
            if isinstance(node, OperationDefinitionNode):
                definitions = node.variable_definitions or ()
                defaults = {each.variable.name.value: _number(each.default_value) for each in definitions}
                self.variables = {**defaults, **self.given}
                self.fragments.clear()
                total += self.of(node.selection_set, self.context.schema.get_root_type(node.operation))
        return total

    def of(self, selections: SelectionSetNode, parent: GraphQLNamedType | None) -> int:
        if not selections.selections:  # which the parser allows, and Strawberry's limiters do not expect
            raise GraphQLError("a selection of fields is empty", selections)
        total = 0
        for node in selections.selections:
            if isinstance(node, FieldNode):
                total += self.of_field(node, parent)
            elif isinstance(node, FragmentSpreadNode):
                total += self.of_fragment(node)
            else:
                total += self.of(node.selection_set, self._type(node.type_condition) or parent)  # type: ignore[attr-defined]
        return total

    def of_field(self, node: FieldNode, parent: GraphQLNamedType | None) -> int:
        known = (
            parent.fields.get(node.name.value) if isinstance(parent, GraphQLObjectType | GraphQLInterfaceType) else None
        )
        if node.selection_set is None:
            return 1
        if known is None:  # validation says what is wrong with it, but what follows us goes through what is below it
            return 1 + self.of(node.selection_set, None)
        repeated = self._first(node) if is_list_type(get_nullable_type(known.type)) else 1
        return 1 + repeated * self.of(node.selection_set, get_named_type(known.type))

    def of_fragment(self, node: FragmentSpreadNode) -> int:
        name = node.name.value
        if name not in self.fragments:
            fragment = self.context.get_fragment(name)
            if fragment is None:
                raise GraphQLError(f"Unknown fragment '{name}'.", node)
            self.fragments[name] = None
            self.fragments[name] = self.of(fragment.selection_set, self._type(fragment.type_condition))
        values = self.fragments[name]
        if values is None:
            raise GraphQLError(f"Cannot spread fragment '{name}' within itself.", node)
        return values

    def _type(self, condition: Any) -> GraphQLNamedType | None:
        return None if condition is None else self.context.schema.get_type(condition.name.value)

    def _first(self, node: FieldNode) -> int:
        """How many items the list may have; what is no sensible limit is refused where it is used."""
        value: object = DEFAULT_FIRST
        for argument in node.arguments or ():
            if argument.name.value == "first":
                given = argument.value
                value = self.variables.get(given.name.value) if isinstance(given, VariableNode) else _number(given)
        return min(value, MAX_FIRST) if isinstance(value, int) and value > 0 else 1


def _number(node: ValueNode | None) -> int | None:
    """What a literal has, if it is a whole number."""
    return int(node.value[:9]) if isinstance(node, IntValueNode) else None

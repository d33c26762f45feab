"""Values as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class MsgspecCodec:
    """JSON by way of msgspec: dataclasses, Structs, attrs classes, dates, UUIDs, decimals and all that JSON has.

    A value comes back as what the batch function is annotated with, or not at all: it is checked. Nothing that is read
    can run code.

    Args:
        enc_hook: Makes something that msgspec knows of an object that it does not know.
        dec_hook: Called with such a type and what was made of the object: makes the object again.

    Examples:
        >>> from dataclasses import dataclass
        >>> from loader.redis import MsgspecCodec
        >>> @dataclass
        ... class Airline:
        ...     code: str
        ...     name: str
        >>> codec = MsgspecCodec()
        >>> codec.encode(Airline("UA", "United"), Airline)
        b'{"code":"UA","name":"United"}'
        >>> codec.decode(b'{"code":"UA","name":"United"}', Airline)
        Airline(code='UA', name='United')
    """

    def __init__(
        self,
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=enc_hook)
        self._dec_hook = dec_hook
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    def encode(self, value: Any, value_type: Any) -> bytes:  # noqa: ARG002  # JSON needs no more than the value
        """The JSON of a value.

        Raises:
            TypeError: If msgspec does not know its type, and there is no `enc_hook` that does.
        """
        return self._encoder.encode(value)

    def decode(self, data: bytes, value_type: Any) -> Any:
        """The value of this type in some JSON.

        Raises:
            msgspec.MsgspecError: If it is none.
        """
        decoder = self._decoders.get(value_type)
        if decoder is None:
            decoder = self._decoders[value_type] = msgspec.json.Decoder(value_type, dec_hook=self._dec_hook)
        return decoder.decode(data)

"""All scripts there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.explorer import core, database, graphql, second_level, streaming, triggers

if TYPE_CHECKING:
    from tests.explorer.world import Script

SCRIPTS: tuple[Script, ...] = (
    *core.SCRIPTS,
    *triggers.SCRIPTS,
    *streaming.SCRIPTS,
    *graphql.SCRIPTS,
    *database.SCRIPTS,
    *second_level.SCRIPTS,
)

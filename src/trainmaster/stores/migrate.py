"""Bring a database to the schema of this version. Alembic is loaded only when there is something to do."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from trainmaster.engine.ports import StoreError

HEAD = "0001"
"""The newest revision (a test compares it with the scripts)."""


def revision_of(connection: sa.Connection) -> str | None:
    """The schema version of a database; None when it is new."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def migrate(connection: sa.Connection) -> None:
    """Apply what is missing, all of it or nothing; the caller's transaction is used."""
    present = revision_of(connection)
    if present == HEAD:
        return
    if present is not None and present > HEAD:
        raise StoreError(
            f"the database has schema {present}, this version of trainmaster knows {HEAD}; "
            "start the version that wrote it, or a newer one"
        )
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")

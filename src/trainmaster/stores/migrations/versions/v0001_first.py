"""The first schema: active and ended jobs, the engine's state, the event log, answered requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "ended",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("entity", sa.String, nullable=False),
        sa.Column("phase", sa.Integer, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("ended_by_number", "ended", ["number"])
    op.create_index("ended_by_time", "ended", ["ended_ms"])
    op.create_index("ended_by_name", "ended", ["name"])
    op.create_table(
        "meta",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "log",
        sa.Column("number", number, primary_key=True, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("job_id", sa.String, nullable=True),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("log_by_job", "log", ["job_id", "number"])
    op.create_table(
        "request",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for table in ("request", "log", "meta", "ended", "job"):
        op.drop_table(table)

"""The tables of a relational store. The first migration creates exactly these; later ones change them."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

job = sa.Table(
    "job",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
)
"""Active jobs: one JSON record each, as `trainmaster.engine.persistence` writes it."""

ended = sa.Table(
    "ended",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("entity", sa.String, nullable=False),
    sa.Column("phase", sa.Integer, nullable=False),
    sa.Column("ended_ms", sa.BigInteger, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Index("ended_by_number", "number"),
    sa.Index("ended_by_time", "ended_ms"),
    sa.Index("ended_by_name", "name"),
)

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""The engine's own state under the key `engine`."""

log = sa.Table(
    "log",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("job_id", sa.String, nullable=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("details", sa.Text, nullable=False),
    sa.Index("log_by_job", "job_id", "number"),
    sqlite_autoincrement=True,
)

request = sa.Table(
    "request",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
)

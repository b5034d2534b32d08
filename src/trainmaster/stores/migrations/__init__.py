"""Schema versions of relational stores, applied by Alembic when a store is opened."""

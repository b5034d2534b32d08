"""What commands share: lazy groups, the `@command` decorator, output, tables, units."""

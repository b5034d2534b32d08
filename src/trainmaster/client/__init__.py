"""The HTTP client of the service: address, connection, retries, typed errors. Imports neither engine nor commands."""

"""The routes of the REST interface under `/api/v1`, by subject."""

"""REST: routes, views of jobs, reasons in words, errors, metrics, limits."""

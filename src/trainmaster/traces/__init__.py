"""Job traces: the jobtrace reader, importers of public formats, the generator."""

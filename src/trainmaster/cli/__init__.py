"""The `trainmaster` command, one file per sub-command."""

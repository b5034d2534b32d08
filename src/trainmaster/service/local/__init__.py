"""The service on one machine: platform, home folder, tokens, logs."""

"""Messages that processes of Trainmaster exchange. Nothing here does I/O."""

"""What each event does to the engine's state: of users, of backends, of nodes. The table is `engine.engine.HANDLERS`.

Reports that a simulation makes by the million are handled in `core.engine`.
"""

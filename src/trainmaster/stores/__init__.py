"""Where engine state survives: memory, SQLite, a journal of small blobs.

What is written is made by `engine.persistence`; ConfigMaps are in `backends.kubernetes.config_map_blobs`.
"""

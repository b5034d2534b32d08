"""Where jobs really run. A backend performs commands and answers with events; it never blocks."""

"""The forms in which models write calls of tools, by the families that use them: a reader and a grammar each."""

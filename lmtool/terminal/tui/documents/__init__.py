"""Content of the panes as lines of runs. A document knows a `View` and a width, but no terminal."""

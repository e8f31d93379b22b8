"""What each pane says, as lines of runs: a document knows a `View` and a width, and nothing of a terminal."""

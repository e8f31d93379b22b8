"""`lmtool trace`: one file per verb for recorded conversations; `files` is what they share."""

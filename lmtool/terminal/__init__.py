"""Full-screen and interactive terminal programs: the chat and the inspector."""

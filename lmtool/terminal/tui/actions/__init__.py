"""What each action of the table does; the app is made of these."""

"""A tour of the inspector by doing: its steps as data, the place in them that is kept, and the app that shows them."""

"""The tests. A package, so that no other package of that name can stand in its place."""

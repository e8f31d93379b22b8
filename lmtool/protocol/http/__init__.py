"""HTTP APIs for a token model: routes, requests, replies and errors, with a package per API and one for tools."""

"""One model out of many servers: which worker takes a request, whether it lives, what its end means."""

"""Log-probabilities as numbers for people: the `Distribution` behind a token, its `Rank`, which kind it is of."""

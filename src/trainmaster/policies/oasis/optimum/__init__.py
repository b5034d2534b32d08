"""The offline optimum of an admission instance, with proofs."""

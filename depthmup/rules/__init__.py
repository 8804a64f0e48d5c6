"""What a parameterization does to each parameter: exponents, the specs they act on, optimizers with the factors."""

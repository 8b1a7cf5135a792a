"""What is proved in general: guarantees of thickness, convergence of the attack."""

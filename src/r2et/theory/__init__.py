"""What is proved in general: bounds of thickness, chance near x, convergence of attacks."""

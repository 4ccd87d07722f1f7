"""What the operators have in common. No module here imports an operator."""

"""`rota apply` in three steps: what a file says, how that differs from what is there, and the writing of it."""

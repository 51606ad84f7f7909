"""What every room needs from C and from the interpreter."""

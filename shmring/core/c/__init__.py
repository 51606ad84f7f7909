"""C headers, and the .pxd files that declare them to Cython."""

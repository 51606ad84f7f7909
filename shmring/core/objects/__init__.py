"""Any Python object as a header and buffers."""

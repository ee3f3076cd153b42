"""C++: the classes of objects, from the compiler's type information."""

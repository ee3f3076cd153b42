"""C++: the classes of objects, by the type information that the compiler leaves for them."""

"""Types of objects: of a managed heap as its runtime counts them, of C++ from the contents of live blocks."""

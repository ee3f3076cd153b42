"""Types of objects: of a managed heap as its runtime counts them, of C++ as live blocks show them."""

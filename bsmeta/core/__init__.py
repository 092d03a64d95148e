"""The foundation of the package; imports no other part of it."""

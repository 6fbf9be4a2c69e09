"""Our own C file and what builds it. Needs only the standard library, and knows no tensors."""

"""Methods measured beside each other, beside the library, and beside what the machine allows."""

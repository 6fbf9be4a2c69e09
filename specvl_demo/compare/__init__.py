"""Methods measured against each other, against the library, and against what the machine allows."""

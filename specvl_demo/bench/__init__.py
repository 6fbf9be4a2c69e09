"""What is asked (`suites`), how it is measured (`measure`), and the library's own loop (`peers`)."""

"""Independent programs and checks that results are compared with."""

"""The project's own tests; see CONTRIBUTING.md for running one of them."""

"""Tests against a private PostgreSQL server."""

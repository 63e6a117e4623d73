"""Tests that need no server: fast enough for every commit."""

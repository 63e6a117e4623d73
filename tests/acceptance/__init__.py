"""Tests of whole processes: killed, restarted, cut off."""

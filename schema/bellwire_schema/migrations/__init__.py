"""The schema's revisions. Each is a SQL file that a DBA can read, and a small Alembic script that runs it.

Functions, triggers and grants are no revisions: they are created anew after every upgrade, so that what runs
is always what this code's files say.
"""

"""One PDF statement for each account and billing period: the job that this project measures itself by.

It is long, it costs something, and a mistake in it is visible. A statement counts as made only when its file
stands under its deterministic key, its row names the file's checksum, and its job has succeeded: the last two
in one commit.
"""

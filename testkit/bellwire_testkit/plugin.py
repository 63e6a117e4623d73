"""The pytest plugin: loaded by every pytest run where Bellwire is installed, so it imports little."""

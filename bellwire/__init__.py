"""The names people import; each module here only re-exports, or says which extra is missing."""
